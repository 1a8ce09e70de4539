//! A small HTTP client: one request, one answer read whole.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{HeaderMap, Method, Request, StatusCode, header::HeaderValue};
use hyper_util::{
    client::legacy::{Client as Pool, connect::HttpConnector},
    rt::TokioExecutor,
};

/// More than any answer in this program has.
const MAX_ANSWER: usize = 8 * 1024 * 1024;

/// Sends requests to one server. Connections are not kept, since the other end may be killed and started again.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    pool: Pool<HttpConnector, Full<Bytes>>,
    base: String,
}

/// An answer.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

impl Client {
    /// A client of the server at `base`, such as `http://127.0.0.1:8080`.
    pub(crate) fn new(base: &str) -> Self {
        let pool = Pool::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build_http();
        Self { pool, base: base.trim_end_matches('/').to_owned() }
    }

    pub(crate) async fn get(&self, path: &str, headers: &[(&str, &str)], limit: Duration) -> Result<Reply, String> {
        self.send(Method::GET, path, headers, Bytes::new(), limit).await
    }

    pub(crate) async fn post(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        json: impl Into<Bytes>,
        limit: Duration,
    ) -> Result<Reply, String> {
        let headers = [headers, &[("content-type", "application/json")]].concat();
        self.send(Method::POST, path, &headers, json.into(), limit).await
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Bytes,
        limit: Duration,
    ) -> Result<Reply, String> {
        let uri = format!("{}{path}", self.base);
        let mut request = Request::builder().method(method).uri(&uri);
        for (name, value) in headers {
            let value = HeaderValue::from_str(value).map_err(|error| format!("header {name}: {error}"))?;
            request = request.header(*name, value);
        }
        let request = request.body(Full::new(body)).map_err(|error| format!("{uri}: {error}"))?;
        let answered = async {
            let answer = self.pool.request(request).await.map_err(|error| chain(&error))?;
            let (parts, body) = answer.into_parts();
            let body = Limited::new(body, MAX_ANSWER).collect().await.map_err(|error| error.to_string())?;
            Ok(Reply { status: parts.status, headers: parts.headers, body: body.to_bytes() })
        };
        match tokio::time::timeout(limit, answered).await {
            Ok(answered) => answered.map_err(|error: String| format!("{uri}: {error}")),
            Err(_) => Err(format!("{uri}: no answer within {limit:?}")),
        }
    }
}

/// An error with those behind it: hyper's own words alone, or a database driver's, say little.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(&format!(": {error}"));
        source = error.source();
    }
    text
}
