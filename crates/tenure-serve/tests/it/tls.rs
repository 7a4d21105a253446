//! TLS, and clients that are known by their certificates. The client is curl, as users have it.

use std::fs;
use std::io::Read;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tenure_core::testing::busy::assert_in_time;
use tenure_serve::Tls;
use tenure_testkit::TestDirectory;

use crate::http::{PATIENCE, Serving, anywhere, new_id, now};

/// Makes an authority, the certificate of a server, and those of two clients: one of that authority, and one of another.
fn certificates(directory: &Path) {
    let script = "set -e
        new='-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes'
        for authority in ours others; do
            openssl req -x509 $new -keyout $authority.key -out $authority.crt -days 2 -subj /CN=$authority
        done
        sign() {
            openssl req $new -keyout $1.key -out $1.csr -subj /CN=$1
            printf \"subjectAltName=$3\\nbasicConstraints=CA:FALSE\\n\" >extensions
            openssl x509 -req -in $1.csr -CA $2.crt -CAkey $2.key -CAcreateserial -out $1.crt -days 2 -extfile extensions
        }
        sign server ours IP:127.0.0.1
        sign billing ours URI:spiffe://shop/billing
        sign stranger others URI:spiffe://shop/billing";
    let made = Command::new("sh").args(["-c", script]).current_dir(directory).output().expect("openssl");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

/// Claims by curl. Returns the status, 0 if there was no answer, and the body.
fn claim(server: &Serving, directory: &Path, client: Option<&str>, name: &str) -> (u16, Value) {
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--cacert", "ours.crt", "--write-out", "\n%{http_code}", "--request", "PUT"]);
    if let Some(client) = client {
        curl.args(["--cert", &format!("{client}.crt"), "--key", &format!("{client}.key")]);
    }
    curl.args(["--json", &format!("{{\"name\": \"{name}\", \"wait\": false}}")]);
    curl.arg(format!("https://{}/v1/claims/{}", server.address, new_id())).current_dir(directory);
    let said = String::from_utf8(curl.output().expect("curl").stdout).expect("text");
    let (body, status) = said.rsplit_once('\n').expect("a status");
    (status.parse().expect("a number"), serde_json::from_str(body).unwrap_or(Value::Null))
}

#[test]
fn a_client_is_known_by_a_certificate_of_the_right_authority() {
    let directory = TestDirectory::new();
    let path = directory.path();
    certificates(path);
    let tokens = path.join("tokens.toml");
    let entry = "[[certificate]]\nsan = \"spiffe://shop/billing\"\nname = \"billing\"\nallow = [\"claim billing/\"]\n";
    fs::write(&tokens, entry).expect("a file");
    fs::set_permissions(&tokens, fs::Permissions::from_mode(0o600)).expect("its mode");
    let tls = Tls {
        certificate: path.join("server.crt"),
        key: path.join("server.key"),
        client_authorities: Some(path.join("ours.crt")),
    };
    let server = Serving::memory(anywhere().tokens(&tokens).tls(tls));
    let began = now();
    // It says nothing: no handshake begins.
    let mut silent = TcpStream::connect(server.address).expect("a connection");
    silent.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    assert_eq!(claim(&server, path, Some("billing"), "billing/1").0, 200);
    for (asked, spoken) in [("--http2", "2"), ("--http1.1", "1.1")] {
        let mut curl = Command::new("curl");
        curl.args([asked, "--silent", "--cacert", "ours.crt", "--write-out", "%{http_version} %{http_code}"]);
        curl.args(["--output", "/dev/null", &format!("https://{}/healthz", server.address)]);
        let said = curl.current_dir(path).output().expect("curl").stdout;
        assert_eq!(String::from_utf8_lossy(&said), format!("{spoken} 200"));
    }
    let (status, busy) = claim(&server, path, Some("billing"), "billing/1");
    assert_eq!((status, &busy["holder"]["program"]), (423, &Value::from("billing")), "{busy}");
    assert_eq!(claim(&server, path, Some("billing"), "payroll/1").0, 403);
    assert_eq!(claim(&server, path, None, "billing/2").0, 401, "it has neither a certificate nor a token");
    assert_eq!(claim(&server, path, Some("stranger"), "billing/2").0, 0, "the handshake fails");
    // A reset is an end as well.
    silent.read_to_end(&mut Vec::new()).ok();
    assert!(began.elapsed() > Duration::from_millis(4500), "{:?}", began.elapsed());
    assert_in_time(began.elapsed(), Duration::from_secs(7));
}
