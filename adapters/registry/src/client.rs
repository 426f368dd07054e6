//! Requests to one registry.

use std::net::IpAddr;
use std::time::Duration;

use reqwest::header::{ACCEPT, WWW_AUTHENTICATE};
use reqwest::{Method, RequestBuilder, Response, StatusCode, Url};
use serde::Deserialize;
use tokio::sync::Mutex;

use crate::auth::{Pass, kept, pass};
use crate::error::{Fault, shown};

/// Longest manifest, configuration or token, bytes; registries take none above 4 MiB (distribution-spec 1.1).
pub(crate) const MAX_DOCUMENT: u64 = 4 << 20;

/// Longest explanation that is read, bytes.
const MAX_REFUSAL: u64 = 64 << 10;

/// Longest wait for a connection, and between two pieces of an answer.
const CONNECT: Duration = Duration::from_secs(30);
const SILENCE: Duration = Duration::from_secs(60);

/// One registry, for one repository in it.
pub(crate) struct Client {
    http: reqwest::Client,
    /// Where its API begins.
    base: String,
    /// Whether it is on this host.
    local: bool,
    repository: String,
    host: String,
    pass: Mutex<Option<Pass>>,
}

#[derive(Deserialize)]
struct Refusals {
    errors: Vec<Refusal>,
}

#[derive(Deserialize)]
struct Refusal {
    #[serde(default)]
    code: String,
    #[serde(default)]
    message: String,
}

/// Whether an authority, with a port or without, is of this host.
fn is_local(authority: &str) -> bool {
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => authority,
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost"
        || host
            .parse()
            .is_ok_and(|address: IpAddr| address.is_loopback())
}

impl Client {
    /// The registry at `host`, a name or address with or without a port.
    pub(crate) fn new(host: &str, repository: &str) -> Result<Self, Fault> {
        // Another one may have been chosen by the process already, which will do.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let local = is_local(host);
        let builder = reqwest::Client::builder()
            .user_agent(concat!("mcp-forge/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT)
            .read_timeout(SILENCE)
            // Not by a redirection either.
            .https_only(!local);
        let builder = match local {
            true => builder.no_proxy(),
            false => builder,
        };
        let scheme = if local { "http" } else { "https" };
        Ok(Self {
            http: builder.build()?,
            base: format!("{scheme}://{host}/v2/{repository}"),
            local,
            repository: repository.to_owned(),
            host: host.to_owned(),
            pass: Mutex::new(None),
        })
    }

    /// A request to an address that the registry named.
    pub(crate) fn to(&self, address: &str, method: Method) -> Result<RequestBuilder, Fault> {
        let wrong = |why| Fault::Wrong(format!("{}: {why}", shown(address)));
        let url = Url::parse(address).map_err(|_| wrong("it is no address"))?;
        let local = self.local && url.host_str().is_some_and(is_local);
        if url.scheme() != "https" && !(local && url.scheme() == "http") {
            return Err(wrong("it is not of https"));
        }
        Ok(self.http.request(method, url))
    }

    /// Gets what is at `path` of the repository.
    pub(crate) async fn get(&self, path: &str, accept: &str) -> Result<Response, Fault> {
        // Once more with what the first answer asks for.
        for again in [false, true] {
            let asked = self.http.get(format!("{}/{path}", self.base));
            let asked = asked.header(ACCEPT, accept);
            let sent_with = self.pass.lock().await.clone();
            let asked = match &sent_with {
                Some(Pass::Basic(name, password)) => asked.basic_auth(name, Some(password)),
                Some(Pass::Bearer(token)) => asked.bearer_auth(token),
                None => asked,
            };
            let answer = asked.send().await?;
            if again || answer.status() != StatusCode::UNAUTHORIZED {
                return good(answer).await;
            }
            let challenges = answer.headers().get_all(WWW_AUTHENTICATE);
            let challenges = challenges.iter().filter_map(|value| value.to_str().ok());
            let challenges = challenges.collect::<Vec<_>>().join(", ");
            let mut held = self.pass.lock().await;
            // Somebody else may have asked meanwhile.
            if *held == sent_with {
                let kept = kept(&self.host).await;
                match pass(self, &challenges, &self.repository, kept).await? {
                    None => return good(answer).await,
                    new => *held = new,
                }
            }
        }
        Err(Fault::Wrong("it wants to be asked for ever".to_owned()))
    }
}

/// The answer, unless it is a refusal.
pub(crate) async fn good(answer: Response) -> Result<Response, Fault> {
    let status = answer.status();
    if status.is_success() {
        return Ok(answer);
    }
    let bytes = bounded(answer, MAX_REFUSAL).await.unwrap_or_default();
    let message = match serde_json::from_slice::<Refusals>(&bytes) {
        Ok(Refusals { errors }) => {
            let first = errors.into_iter().next();
            first.map_or_else(String::new, |first| match first.message.as_str() {
                "" => first.code,
                message => message.to_owned(),
            })
        }
        Err(_) => String::new(),
    };
    Err(Fault::Refused {
        status,
        message: shown(&message),
    })
}

/// All of an answer, up to a bound.
pub(crate) async fn bounded(mut answer: Response, most: u64) -> Result<Vec<u8>, Fault> {
    let mut bytes = Vec::new();
    while let Some(piece) = answer.chunk().await? {
        if (bytes.len() + piece.len()) as u64 > most {
            return Err(Fault::Wrong(format!("it sends more than {most} bytes")));
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_host_is_local() {
        for local in [
            "localhost",
            "localhost:5000",
            "127.0.0.1:1",
            "127.9.9.9",
            "[::1]:5000",
        ] {
            assert!(is_local(local), "{local}");
        }
        for other in [
            "localhost.example",
            "128.0.0.1",
            "example:5000",
            "[::2]:5000",
            "127.0.0.1.example",
        ] {
            assert!(!is_local(other), "{other}");
        }
    }

    #[test]
    fn addresses_are_of_https() {
        let far = Client::new("registry.example", "a/b").unwrap();
        let near = Client::new("127.0.0.1:5000", "a/b").unwrap();
        let taken = |client: &Client, address| client.to(address, Method::GET).is_ok();
        assert!(taken(&far, "https://auth.example/token"));
        assert!(!taken(&far, "http://auth.example/token"));
        assert!(!taken(&far, "http://127.0.0.1/token"));
        assert!(!taken(&far, "file:///etc/passwd"));
        assert!(taken(&near, "http://127.0.0.1:5001/token"));
        assert!(!taken(&near, "http://auth.example/token"));
    }
}
