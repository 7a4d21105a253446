//! nginx, which many have before a server.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Port, Server, Site, certificates};

/// nginx with one file of configuration, on a port of its own. It is killed and its files are removed when this value ends.
#[derive(Debug)]
pub struct NginxServer {
    server: Server,
    port: Port,
}

crate::server::is_a_server!(NginxServer);

impl NginxServer {
    /// Starts it with a file of configuration as it lies in `/etc/nginx/conf.d`, which `write` makes for a port and the directory in which
    /// `server.crt` and `server.key` are, and waits until it listens.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start(write: impl FnOnce(u16, &Path) -> String) -> NginxServer {
        let port = Port::free();
        let server = Server::start(&Site::new(), &format!("nginx-{}", port.number()), |directory| {
            certificates::make(directory);
            fs::write(directory.join("site.conf"), write(port.number(), directory)).expect("a file");
            fs::write(directory.join("nginx.conf"), MAIN).expect("a file");
            // Debian keeps it from the search path of those who are not root.
            let mut command = Command::new("/usr/sbin/nginx");
            command.arg("-p").arg(directory).args(["-c", "nginx.conf", "-e", "stderr"]);
            command
        });
        let nginx = NginxServer { server, port };
        nginx.server.wait_for("a port", || std::net::TcpStream::connect(("127.0.0.1", nginx.port())).ok());
        nginx
    }

    /// Returns its port.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Returns the certificate of the authority that its clients must trust.
    pub fn authority(&self) -> PathBuf {
        self.server.directory().join("ca.crt")
    }
}

/// One process, so that it ends when it is killed, and nothing outside of its directory.
const MAIN: &str = "daemon off;
master_process off;
pid nginx.pid;
error_log stderr warn;
events {}
http {
    access_log off;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    include site.conf;
}
";
