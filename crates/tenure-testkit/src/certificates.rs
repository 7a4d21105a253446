//! Certificates of servers under test.

use std::path::Path;
use std::process::Command;

use crate::account::run;

/// The files that a server needs.
const FILES: [&str; 3] = ["ca.crt", "server.crt", "server.key"];

/// Takes what was made in another directory: servers that speak with each other trust one authority.
pub(crate) fn take(from: &Path, directory: &Path) {
    for file in FILES {
        std::fs::copy(from.join(file), directory.join(file)).expect("certificates that were made");
    }
}

/// Makes an authority (`ca.crt`) and a certificate by it (`server.crt`, `server.key`) for 127.0.0.1 and localhost, good for two
/// days.
pub(crate) fn make(directory: &Path) {
    let script = "set -e
        printf 'subjectAltName=IP:127.0.0.1,DNS:localhost\\nbasicConstraints=CA:FALSE\\n' >extensions
        new='-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes'
        openssl req -x509 $new -keyout ca.key -out ca.crt -days 2 -subj /CN=tenure-test-authority
        openssl req $new -keyout server.key -out server.csr -subj /CN=localhost
        openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -out server.crt -days 2 \\
            -extfile extensions";
    run(Command::new("sh").args(["-c", script]).current_dir(directory));
}
