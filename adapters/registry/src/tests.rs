//! Pulls from a scripted registry on loopback.

use std::collections::BTreeMap;
use std::fs;
use std::sync::{Arc, Mutex};

use mcp_forge_ports::driven::ImageRegistry;
use mcp_forge_ports::{PortError, PortErrorKind};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::Registry;

const ID: &str = "sha256:";
const OCI: &str = "application/vnd.oci.image.manifest.v1+json";

fn digest(bytes: &[u8]) -> String {
    let hash = Sha256::digest(bytes);
    let hex = hash.iter().map(|byte| format!("{byte:02x}"));
    format!("{ID}{}", hex.collect::<String>())
}

#[derive(Clone)]
struct Answer {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
    /// The body again and again.
    endless: bool,
    /// Only with this header's line.
    asks: Option<&'static str>,
}

fn ok(body: impl Into<Vec<u8>>) -> Answer {
    Answer {
        status: 200,
        headers: Vec::new(),
        body: body.into(),
        endless: false,
        asks: None,
    }
}

fn refusal(status: u16) -> Answer {
    let body = "{\"errors\": [{\"code\": \"NO\", \"message\": \"no\\u001b[2J\"}]}";
    Answer { status, ..ok(body) }
}

type Answers = BTreeMap<String, Vec<Answer>>;

/// Answers each path in turn, the last answer again and again, and notes what was asked for.
struct Server {
    address: String,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Server {
    async fn start(answers: Answers) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let answers = Arc::new(Mutex::new(answers));
        let noted = Arc::clone(&asked);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&answers), Arc::clone(&noted)));
            }
        });
        Self { address, asked }
    }

    fn count(&self, part: &str) -> usize {
        let asked = self.asked.lock().unwrap();
        asked.iter().filter(|line| line.contains(part)).count()
    }
}

async fn serve(stream: TcpStream, answers: Arc<Mutex<Answers>>, asked: Arc<Mutex<Vec<String>>>) {
    let mut stream = BufReader::new(stream);
    let mut head = Vec::new();
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await.unwrap_or(0) == 0 {
            return;
        }
        if line == "\r\n" {
            break;
        }
        head.push(line.trim().to_ascii_lowercase());
    }
    let target = head[0].split(' ').nth(1).unwrap().to_owned();
    asked.lock().unwrap().push(target.clone());
    let path = target.split('?').next().unwrap();
    let answer = {
        let mut answers = answers.lock().unwrap();
        match answers.get_mut(path) {
            None => refusal(404),
            Some(left) if left.len() > 1 => left.remove(0),
            Some(left) => left[0].clone(),
        }
    };
    let answer = match answer.asks {
        Some(line) if !head.iter().any(|one| one == line) => Answer {
            status: 401,
            ..answer
        },
        _ => answer,
    };
    let mut text = format!("HTTP/1.1 {} x\r\nconnection: close\r\n", answer.status);
    for (name, value) in &answer.headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    let is_chunked = answer
        .headers
        .iter()
        .any(|(name, _)| *name == "transfer-encoding");
    if !answer.endless && !is_chunked {
        text.push_str(&format!("content-length: {}\r\n", answer.body.len()));
    }
    text.push_str("\r\n");
    let mut sent = stream.write_all(text.as_bytes()).await;
    loop {
        sent = match sent {
            Ok(()) => stream.write_all(&answer.body).await,
            Err(_) => return,
        };
        if !answer.endless {
            break;
        }
    }
    let _ = stream.flush().await;
}

/// An image of one layer: its blobs by digest, and its manifest.
struct Image {
    layer: Vec<u8>,
    configuration: Vec<u8>,
    manifest: Vec<u8>,
}

fn image() -> Image {
    let layer = b"the layer".to_vec();
    let configuration = b"{}".to_vec();
    let described = |kind: &str, bytes: &[u8]| json!({"mediaType": kind, "digest": digest(bytes), "size": bytes.len()});
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": OCI,
        "config": described("application/vnd.oci.image.config.v1+json", &configuration),
        "layers": [described("application/vnd.oci.image.layer.v1.tar", &layer)],
    });
    Image {
        layer,
        configuration,
        manifest: manifest.to_string().into_bytes(),
    }
}

const BASE: &str = "/v2/a/b";

fn manifest_at(name: &str) -> String {
    format!("{BASE}/manifests/{name}")
}

fn blob_at(bytes: &[u8]) -> String {
    format!("{BASE}/blobs/{}", digest(bytes))
}

fn answers() -> Answers {
    let image = image();
    Answers::from([
        (manifest_at("1"), vec![ok(image.manifest)]),
        (blob_at(&image.layer), vec![ok(image.layer)]),
        (blob_at(&image.configuration), vec![ok(image.configuration)]),
    ])
}

/// What came of it, and where.
struct Pulled {
    told: Result<(), PortError>,
    place: tempfile::TempDir,
    server: Server,
}

async fn pull_with(answers: Answers, what: &str, known: &[String]) -> Pulled {
    let server = Server::start(answers).await;
    let place = tempfile::tempdir().unwrap();
    let reference = format!("{}/a/b{what}", server.address);
    let registry = Registry::impatient(1 << 20);
    let told = registry
        .fetch(&reference, place.path(), known, Arc::new(|_, _| {}))
        .await;
    Pulled {
        told,
        place,
        server,
    }
}

async fn pull(answers: Answers) -> Pulled {
    pull_with(answers, ":1", &[]).await
}

impl Pulled {
    fn read(&self, path: &str) -> Vec<u8> {
        fs::read(self.place.path().join(path)).unwrap()
    }

    fn has(&self, bytes: &[u8]) -> bool {
        let name = digest(bytes).replacen(':', "/", 1);
        fs::exists(self.place.path().join("blobs").join(name)).unwrap()
    }

    #[track_caller]
    fn refused(&self, kind: PortErrorKind, why: &str) {
        let error = self.told.as_ref().unwrap_err();
        let chain = error.chain();
        assert!(
            error.kind == kind && chain.contains(why),
            "{kind:?} {chain}"
        );
        assert!(chain.len() < 1000, "{chain}");
        assert!(!fs::exists(self.place.path().join("index.json")).unwrap());
    }

    #[track_caller]
    fn came(&self) {
        assert_eq!(self.told.as_ref().map_err(PortError::chain), Ok(&()));
    }
}

#[tokio::test]
async fn an_image_becomes_a_layout() {
    let pulled = pull(answers()).await;
    pulled.came();
    let image = image();
    let index: Value = serde_json::from_slice(&pulled.read("index.json")).unwrap();
    let expected = json!([{
        "mediaType": OCI, "digest": digest(&image.manifest), "size": image.manifest.len(),
    }]);
    assert_eq!(index["manifests"], expected);
    assert!(
        pulled
            .read("oci-layout")
            .starts_with(b"{\"imageLayoutVersion\"")
    );
    for bytes in [&image.manifest, &image.configuration, &image.layer] {
        assert!(pulled.has(bytes));
    }
    // One that is there already.
    let id = digest(&image.configuration).replacen(ID, "", 1);
    let pulled = pull_with(answers(), ":1", &[id]).await;
    pulled.came();
    assert!(pulled.has(&image.configuration) && !pulled.has(&image.layer));
}

#[tokio::test]
async fn an_index_leads_to_the_image_of_this_host() {
    let image = image();
    let of = |os: &str, architecture: &str, digest: &str| {
        json!({
            "mediaType": OCI, "digest": digest, "size": 2,
            "platform": {"os": os, "architecture": architecture},
        })
    };
    let here = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let others = [
        of("linux", "s390x", &digest(b"1")),
        of("windows", here, &digest(b"2")),
    ];
    let index = |manifests: Vec<Value>| {
        let index = json!({"schemaVersion": 2, "manifests": manifests});
        let mut answers = answers();
        let named = digest(&image.manifest);
        answers.insert(manifest_at("1"), vec![ok(index.to_string())]);
        answers.insert(manifest_at(&named), vec![ok(image.manifest.clone())]);
        answers
    };
    let own = of("linux", here, &digest(&image.manifest));
    let all = others.iter().cloned().chain([own]).collect();
    pull(index(all)).await.came();
    let pulled = pull(index(others.to_vec())).await;
    pulled.refused(PortErrorKind::Denied, "it has 2 images, none of linux/");
}

#[tokio::test]
async fn digests_are_checked() {
    let image = image();
    let right = digest(&image.manifest);
    let mut with = answers();
    with.insert(manifest_at(&right), vec![ok(image.manifest.clone())]);
    let pinned = format!(":1@{right}");
    pull_with(with.clone(), &pinned, &[]).await.came();
    with.insert(manifest_at(&right), vec![ok("{}")]);
    let pulled = pull_with(with, &pinned, &[]).await;
    pulled.refused(
        PortErrorKind::Denied,
        "its manifest has the digest sha256:44136fa3",
    );

    let mut with = answers();
    with.insert(
        blob_at(&image.layer),
        vec![ok("the lawyer"[..9].to_owned())],
    );
    let pulled = pull(with).await;
    pulled.refused(PortErrorKind::Denied, "a blob has the digest sha256:");
}

#[tokio::test]
async fn what_is_too_long_is_not_read() {
    let image = image();
    let endless = |status| Answer {
        status,
        endless: true,
        ..ok(vec![b'x'; 1 << 16])
    };
    for (path, why) in [
        (manifest_at("1"), "it sends more than 4194304 bytes"),
        (blob_at(&image.layer), "has more than 9 bytes"),
        (blob_at(&image.configuration), "has more than 2 bytes"),
    ] {
        let mut with = answers();
        with.insert(path, vec![endless(200)]);
        pull(with).await.refused(PortErrorKind::Denied, why);
    }
    let mut with = answers();
    with.insert(manifest_at("1"), vec![endless(403)]);
    pull(with)
        .await
        .refused(PortErrorKind::Denied, "403 Forbidden");

    // What it announces.
    let mut manifest: Value = serde_json::from_slice(&image.manifest).unwrap();
    manifest["layers"][0]["size"] = json!(1 << 20);
    let mut with = answers();
    with.insert(manifest_at("1"), vec![ok(manifest.to_string())]);
    pull(with)
        .await
        .refused(PortErrorKind::Denied, "it has 1 layers of 1048578 bytes");
    let layer = manifest["layers"][0].clone();
    manifest["layers"] = json!(vec![layer; 600]);
    let mut with = answers();
    with.insert(manifest_at("1"), vec![ok(manifest.to_string())]);
    pull(with)
        .await
        .refused(PortErrorKind::Denied, "it has 600 layers");
}

#[tokio::test]
async fn names_of_blobs_lead_nowhere_else() {
    let image = image();
    let mut manifest: Value = serde_json::from_slice(&image.manifest).unwrap();
    for wrong in [
        "sha256:../../../../etc/passwd".to_owned(),
        format!("sha512:{}", "0".repeat(128)),
        format!("sha256:{}", "A".repeat(64)),
    ] {
        manifest["layers"][0]["digest"] = json!(wrong);
        let mut with = answers();
        with.insert(manifest_at("1"), vec![ok(manifest.to_string())]);
        let pulled = pull(with).await;
        let error = pulled.told.as_ref().unwrap_err();
        assert_eq!(error.kind, PortErrorKind::Denied, "{}", error.chain());
        assert_eq!(pulled.server.count("passwd"), 0);
    }
}

#[tokio::test]
async fn what_may_go_better_is_tried_again() {
    let image = image();
    let mut with = answers();
    with.insert(
        manifest_at("1"),
        vec![refusal(503), refusal(429), ok(image.manifest)],
    );
    // The connection ends in the middle of the chunks.
    let short = Answer {
        headers: vec![("transfer-encoding", "chunked".to_owned())],
        ..ok("3\r\nthe\r\n")
    };
    with.insert(blob_at(&image.layer), vec![short, ok(image.layer.clone())]);
    let pulled = pull(with).await;
    pulled.came();
    assert_eq!(pulled.server.count("/manifests/"), 3);

    let mut with = answers();
    with.insert(manifest_at("1"), vec![refusal(500)]);
    let pulled = pull(with).await;
    pulled.refused(PortErrorKind::Unreachable, "500 Internal Server Error");
    assert_eq!(pulled.server.count("/manifests/"), 4);
}

#[tokio::test]
async fn a_refusal_is_told_harmlessly() {
    let mut with = answers();
    with.remove(&manifest_at("1"));
    let pulled = pull(with).await;
    pulled.refused(PortErrorKind::NotFound, "404 Not Found: no\\u{1b}[2J");
    assert_eq!(pulled.server.count("/manifests/"), 1);
}

#[tokio::test]
async fn a_token_is_asked_for_and_given() {
    let token = "/token".to_owned();
    let challenge = |realm: &str| {
        let value = format!("Bearer realm=\"{realm}\",service=\"s\",scope=\"ignored\"");
        vec![("www-authenticate", value)]
    };
    let guarded = |realm: &str| {
        let mut with = answers();
        for left in with.values_mut() {
            left[0].headers = challenge(realm);
            left[0].asks = Some("authorization: bearer t");
        }
        with.insert(token.clone(), vec![ok("{\"token\": \"T\"}")]);
        with
    };
    // Where the server is is known once it runs: the token comes from another one.
    let other = Server::start(guarded("")).await;
    let realm = format!("http://{}/token", other.address);
    pull(guarded(&realm)).await.came();
    assert_eq!(
        other.count("/token?service=s&scope=repository%3aa%2fb%3apull"),
        1
    );

    for (realm, why) in [
        ("http://auth.example/token", "it is not of https"),
        ("nonsense", "it is no address"),
    ] {
        pull(guarded(realm))
            .await
            .refused(PortErrorKind::Denied, why);
    }
    let mut with = guarded(&realm);
    for left in with.values_mut() {
        left[0].asks = Some("authorization: bearer another");
    }
    let pulled = pull(with).await;
    pulled.refused(PortErrorKind::Denied, "401 Unauthorized");
    assert!(pulled.server.count("/manifests/") <= 2);
}

#[tokio::test]
async fn other_challenges_are_told() {
    for (challenge, why) in [
        ("Basic realm=\"r\"", "401 Unauthorized"),
        ("Negotiate", "only Basic and Bearer are known"),
        ("Bearer service=\"s\"", "no realm"),
        ("=,=", "that is no challenge"),
    ] {
        let mut with = answers();
        let first = &mut with.get_mut(&manifest_at("1")).unwrap()[0];
        first.headers = vec![("www-authenticate", challenge.to_owned())];
        first.asks = Some("authorization: none of this");
        pull(with).await.refused(PortErrorKind::Denied, why);
    }
}

#[tokio::test]
async fn a_blob_may_be_elsewhere() {
    let image = image();
    let mut with = answers();
    let elsewhere = Server::start(Answers::from([(
        "/elsewhere".to_owned(),
        vec![ok(image.layer.clone())],
    )]))
    .await;
    let moved = Answer {
        status: 307,
        headers: vec![(
            "location",
            format!("http://{}/elsewhere", elsewhere.address),
        )],
        ..ok("")
    };
    with.insert(blob_at(&image.layer), vec![moved]);
    pull(with).await.came();
    assert_eq!(elsewhere.count("/elsewhere"), 1);
}

#[tokio::test]
async fn nobody_is_there() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().unwrap();
    drop(server);
    let place = tempfile::tempdir().unwrap();
    let registry = Registry::impatient(1 << 20);
    let reference = format!("{address}/a/b:1");
    let told = registry.fetch(&reference, place.path(), &[], Arc::new(|_, _| {}));
    let error = told.await.unwrap_err();
    assert_eq!(error.kind, PortErrorKind::Unreachable);
    assert!(
        error.chain().contains("Connection refused"),
        "{}",
        error.chain()
    );
}
