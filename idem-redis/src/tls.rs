//! TLS by rustls, to the host that the URL names.

use std::{fmt, net::IpAddr, path::Path, sync::Arc};

use fred::types::config::{HostMapping, TlsConfig, TlsConnector, TlsHostMapping};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, pem::PemObject},
};

use crate::OpenError;

/// Trusts the authorities in the file, or those that the system trusts. Certificates of nodes of a cluster that are known
/// by their addresses must be for the name, if there is one.
pub(crate) fn config(ca_file: Option<&Path>, name: Option<String>) -> Result<TlsConfig, OpenError> {
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| OpenError::Tls { problem: error.to_string() })?
        .with_root_certificates(roots(ca_file)?)
        .with_no_client_auth();
    Ok(TlsConfig {
        connector: TlsConnector::from(config),
        hostnames: TlsHostMapping::Custom(Arc::new(NamedByUrl(name))),
    })
}

fn roots(ca_file: Option<&Path>) -> Result<RootCertStore, OpenError> {
    let mut roots = RootCertStore::empty();
    let Some(path) = ca_file else {
        // Some of a system's certificates are often unusable; what counts is that there are others.
        for certificate in rustls_native_certs::load_native_certs().certs {
            let _ = roots.add(certificate);
        }
        if roots.is_empty() {
            let problem = "the system has no certificates of authorities; name a file with Builder::ca_file or \
                           sslrootcert=PATH in the URL";
            return Err(OpenError::Tls { problem: problem.into() });
        }
        return Ok(roots);
    };
    let failed = |error: &dyn fmt::Display| OpenError::Tls {
        problem: format!("the certificates in {path:?} (sslrootcert) can't be used: {error}"),
    };
    for certificate in CertificateDer::pem_file_iter(path).map_err(|error| failed(&error))? {
        let certificate = certificate.map_err(|error| failed(&error))?;
        roots.add(certificate).map_err(|error| failed(&error))?;
    }
    if roots.is_empty() {
        return Err(failed(&"there are none in it"));
    }
    Ok(roots)
}

/// Nodes of a cluster tell each other's addresses. Where the URL has a name, their certificates must be for that.
#[derive(Debug)]
struct NamedByUrl(Option<String>);

impl HostMapping for NamedByUrl {
    fn map(&self, _ip: &IpAddr, _default_host: &str) -> Option<String> {
        self.0.clone()
    }
}
