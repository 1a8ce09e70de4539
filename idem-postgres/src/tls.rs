//! TLS by rustls, as the `sslmode` of a URL asks for it.

use std::{fmt, path::PathBuf, sync::Arc};

use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{WebPkiSupportedAlgorithms, ring, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject},
};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::OpenError;

/// Makes TLS connections.
pub(crate) type Tls = MakeRustlsConnect;

/// Who is at the other end, and how sure to be of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verify {
    /// Whoever it is: encrypted, and not protected from somebody in between.
    Nobody,
    /// Somebody with a certificate of the authority.
    Authority,
    /// The host of the URL, by a certificate of the authority.
    Host,
}

/// Certificates of authorities.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Roots {
    System,
    File(PathBuf),
}

pub(crate) fn connector(verify: &Verify, roots: &Roots) -> Result<Tls, OpenError> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| OpenError::Tls { problem: error.to_string() })?;
    let algorithms = provider.signature_verification_algorithms;
    let authority = match verify {
        Verify::Host => {
            let config = builder.with_root_certificates(load(roots)?).with_no_client_auth();
            return Ok(MakeRustlsConnect::new(config));
        }
        Verify::Authority => {
            let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(load(roots)?), provider).build();
            Some(verifier.map_err(|error| OpenError::Tls { problem: error.to_string() })?)
        }
        Verify::Nobody => None,
    };
    let verifier = Arc::new(AnyHost { authority, algorithms });
    let config = builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth();
    Ok(MakeRustlsConnect::new(config))
}

fn load(roots: &Roots) -> Result<RootCertStore, OpenError> {
    let mut store = RootCertStore::empty();
    match roots {
        Roots::System => {
            // Some of a system's certificates are often unusable; what counts is that there are others.
            for certificate in rustls_native_certs::load_native_certs().certs {
                let _ = store.add(certificate);
            }
            if store.is_empty() {
                let problem = "the system has no certificates of authorities; name a file with sslrootcert=PATH".into();
                return Err(OpenError::Tls { problem });
            }
        }
        Roots::File(path) => {
            let failed = |error: &dyn fmt::Display| OpenError::Tls {
                problem: format!("the certificates in {path:?} (sslrootcert) can't be used: {error}"),
            };
            let certificates = CertificateDer::pem_file_iter(path).map_err(|error| failed(&error))?;
            for certificate in certificates {
                let certificate = certificate.map_err(|error| failed(&error))?;
                store.add(certificate).map_err(|error| failed(&error))?;
            }
            if store.is_empty() {
                return Err(failed(&"there are none in it"));
            }
        }
    }
    Ok(store)
}

/// Takes a certificate for any host, as libpq's `verify-ca` and `require` do. The signature must still be the
/// certificate's own.
#[derive(Debug)]
struct AnyHost {
    /// Whose certificates are taken; anybody's if none.
    authority: Option<Arc<WebPkiServerVerifier>>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for AnyHost {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(authority) = &self.authority else {
            return Ok(ServerCertVerified::assertion());
        };
        match authority.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            // The name is looked at last: everything else was in order.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
