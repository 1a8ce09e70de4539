//! Private database servers for the tests of idem.
