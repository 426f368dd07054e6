//! Who pulls: the credentials that `podman login` and `docker login` keep, and what registries want to see of them.

use docker_credential::{DockerCredential, get_credential, get_podman_credential};
use http_auth::parse_challenges;
use serde::Deserialize;

use crate::client::{Client, MAX_DOCUMENT, bounded};
use crate::error::{Fault, shown};

/// What a request is sent with.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Pass {
    Basic(String, String),
    Bearer(String),
}

#[derive(Deserialize)]
struct Token {
    #[serde(default)]
    token: String,
    #[serde(default)]
    access_token: String,
}

/// What is kept for this registry, if anything. Helpers of it are programs that the user has named.
pub(crate) async fn kept(registry: &str) -> Option<DockerCredential> {
    let registry = registry.to_owned();
    let looking = tokio::task::spawn_blocking(move || {
        // The name that Docker gives its own in the file.
        let old = format!("https://{registry}/v1/");
        [registry.as_str(), old.as_str()]
            .into_iter()
            .find_map(|name| {
                let found = get_podman_credential(name).or_else(|_| get_credential(name));
                found.ok()
            })
    });
    looking.await.ok().flatten()
}

/// What the registry wants to see, by its answer of 401.
pub(crate) async fn pass(
    client: &Client,
    challenges: &str,
    repository: &str,
    kept: Option<DockerCredential>,
) -> Result<Option<Pass>, Fault> {
    let wrong = |why: &str| Fault::Wrong(format!("it asks for {}: {why}", shown(challenges)));
    let challenges = parse_challenges(challenges).map_err(|_| wrong("that is no challenge"))?;
    for challenge in &challenges {
        let parameter = |name: &str| {
            let all = challenge.params.iter();
            let mut fitting = all.filter(|(key, _)| key.eq_ignore_ascii_case(name));
            fitting.next().map(|(_, value)| value.to_unescaped())
        };
        if challenge.scheme.eq_ignore_ascii_case("basic") {
            return Ok(match kept {
                Some(DockerCredential::UsernamePassword(name, password)) => {
                    Some(Pass::Basic(name, password))
                }
                _ => None,
            });
        }
        if challenge.scheme.eq_ignore_ascii_case("bearer") {
            let realm = parameter("realm").ok_or_else(|| wrong("no realm"))?;
            let service = parameter("service").unwrap_or_default();
            let scope = format!("repository:{repository}:pull");
            return token(client, &realm, &service, &scope, kept)
                .await
                .map(Some);
        }
    }
    Err(wrong("only Basic and Bearer are known"))
}

/// A token, by the token authentication of the Docker registry and, for identity tokens, OAuth 2.
async fn token(
    client: &Client,
    realm: &str,
    service: &str,
    scope: &str,
    kept: Option<DockerCredential>,
) -> Result<Pass, Fault> {
    let asked = match kept {
        Some(DockerCredential::IdentityToken(refresh)) => {
            client.to(realm, reqwest::Method::POST)?.form(&[
                ("grant_type", "refresh_token"),
                ("service", service),
                ("scope", scope),
                ("client_id", "mcp-forge"),
                ("refresh_token", &refresh),
            ])
        }
        other => {
            let asked = client.to(realm, reqwest::Method::GET)?;
            let asked = asked.query(&[("service", service), ("scope", scope)]);
            match other {
                Some(DockerCredential::UsernamePassword(name, password)) => {
                    asked.basic_auth(name, Some(password))
                }
                _ => asked,
            }
        }
    };
    let bytes = bounded(
        crate::client::good(asked.send().await?).await?,
        MAX_DOCUMENT,
    )
    .await?;
    let token: Token = serde_json::from_slice(&bytes)
        .map_err(|error| Fault::Wrong(format!("its token cannot be read: {error}")))?;
    match (token.token, token.access_token) {
        (token, other) if token.is_empty() && other.is_empty() => {
            Err(Fault::Wrong("it gives an empty token".to_owned()))
        }
        (token, other) if token.is_empty() => Ok(Pass::Bearer(other)),
        (token, _) => Ok(Pass::Bearer(token)),
    }
}
