//! A network that fails as told, before a server that answers each line with itself.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_testkit::{Loss, PATIENCE, Proxy, wait_for};

/// How long nothing may come until it counts as silence.
const SILENCE: Duration = Duration::from_millis(100);

/// A server that keeps what it was sent, and answers with the same.
struct Echo {
    address: SocketAddr,
    heard: Arc<Mutex<Vec<String>>>,
}

impl Echo {
    fn start() -> Echo {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let echo = Echo { address: listener.local_addr().unwrap(), heard: Arc::default() };
        let heard = echo.heard.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, heard) = (stream.unwrap(), heard.clone());
                std::thread::spawn(move || {
                    let input = BufReader::new(stream.try_clone().unwrap());
                    for line in input.lines().map_while(Result::ok) {
                        heard.lock().unwrap().push(line.clone());
                        if writeln!(stream, "{line}").is_err() {
                            return;
                        }
                    }
                });
            }
        });
        echo
    }

    fn wait_until_heard(&self, line: &str) {
        wait_for("line at the server", || self.heard.lock().unwrap().iter().any(|l| l == line).then_some(()));
    }
}

/// A client, which knows when nothing comes.
struct Client(BufReader<TcpStream>);

impl Client {
    fn connect(proxy: &Proxy) -> Client {
        let stream = TcpStream::connect(("127.0.0.1", proxy.port())).unwrap();
        Client(BufReader::new(stream))
    }

    fn send(&mut self, line: &str) {
        writeln!(self.0.get_mut(), "{line}").unwrap();
    }

    /// What comes; `None` for silence.
    fn receive(&mut self, within: Duration) -> Result<Option<String>, ErrorKind> {
        self.0.get_ref().set_read_timeout(Some(within)).unwrap();
        let mut line = String::new();
        match self.0.read_line(&mut line) {
            Ok(_) => Ok(Some(line.trim_end().to_owned())),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error.kind()),
        }
    }

    fn is_answered(&mut self, line: &str) -> bool {
        self.send(line);
        self.receive(PATIENCE) == Ok(Some(line.to_owned()))
    }

    fn is_not_answered(&mut self, line: &str) -> bool {
        self.send(line);
        self.receive(SILENCE) == Ok(None)
    }

    fn is_served(&mut self) -> bool {
        self.is_answered("are you there")
    }

    fn is_cut(&mut self) -> bool {
        self.receive(PATIENCE) == Err(ErrorKind::ConnectionReset)
    }
}

fn world() -> (Echo, Proxy, Client) {
    let echo = Echo::start();
    let proxy = Proxy::start(echo.address);
    let mut client = Client::connect(&proxy);
    assert!(client.is_served());
    (echo, proxy, client)
}

#[test]
fn what_is_held_back_arrives_when_the_network_is_healed() {
    let echo = Echo::start();
    let proxy = Proxy::start(echo.address);
    let mut client = Client::connect(&proxy);
    proxy.pause();
    client.send("one");
    client.send("two");
    assert_eq!(client.receive(SILENCE), Ok(None));
    proxy.heal();
    assert_eq!(client.receive(PATIENCE), Ok(Some("one".to_owned())));
    assert_eq!(client.receive(PATIENCE), Ok(Some("two".to_owned())));
}

#[test]
fn one_connection_of_several_is_in_trouble() {
    let (echo, proxy, mut first) = world();
    let mut second = Client::connect(&proxy);
    assert!(first.is_served() && second.is_served());
    proxy.lose_one(3, false, true);
    assert!(second.is_not_answered("heard") && first.is_served());
    echo.wait_until_heard("heard");
    proxy.heal();
    assert!(second.is_cut() && first.is_served());
    let mut second = Client::connect(&proxy);
    assert!(second.is_served());
    proxy.hold_back_one(1);
    assert!(second.is_not_answered("late") && first.is_served());
    proxy.heal();
    assert_eq!(second.receive(PATIENCE), Ok(Some("late".to_owned())));
    proxy.cut_one(0);
    assert!(first.is_cut() && second.is_served());
}

#[test]
fn a_client_is_sent_to_a_port_of_another_name() {
    let (_echo, proxy, mut client) = world();
    proxy.rename(&[(20005, 31000)]);
    client.send("MOVED 1 127.0.0.1:20005");
    assert_eq!(client.receive(PATIENCE), Ok(Some("MOVED 1 127.0.0.1:31000".to_owned())));
}

#[test]
fn one_client_of_several_is_cut_off_by_what_it_says() {
    let echo = Echo::start();
    let proxy = Proxy::start(echo.address);
    let mut before = Client::connect(&proxy);
    assert!(before.is_answered("I am Bob"));
    proxy.silence(b"Bob");
    assert!(before.receive(PATIENCE).is_err(), "it may have said it before");
    let [mut ann, mut bob] = [Client::connect(&proxy), Client::connect(&proxy)];
    assert!(ann.is_answered("I am Ann"));
    bob.send("I am Bob");
    bob.send("Hello?");
    assert_eq!(bob.receive(SILENCE), Ok(None));
    assert!(ann.is_answered("Who?"));
    assert!(!echo.heard.lock().unwrap().iter().any(|line| line == "Hello?"));
    proxy.heal();
    assert!(Client::connect(&proxy).is_answered("I am Bob again"));
}

#[test]
fn a_connection_ends_when_its_client_ends() {
    let (_echo, proxy, client) = world();
    assert_eq!(proxy.connections(), 1);
    drop(client);
    wait_for("end of the connection", || (proxy.connections() == 0).then_some(()));
}

#[test]
fn dropped_replies_are_those_to_requests_that_arrive() {
    let (echo, proxy, mut client) = world();
    proxy.drop_replies();
    assert!(client.is_not_answered("heard"));
    echo.wait_until_heard("heard");
    proxy.heal();
    assert!(client.is_cut());
    assert!(Client::connect(&proxy).is_served());
}

#[test]
fn dropped_requests_do_not_arrive() {
    let (echo, proxy, mut client) = world();
    proxy.drop_requests();
    assert!(client.is_not_answered("unheard"));
    assert!(!echo.heard.lock().unwrap().contains(&"unheard".to_owned()));
    proxy.heal();
    assert!(client.is_cut());
}

#[test]
fn a_black_hole_accepts_connections_and_nothing_else() {
    let (echo, proxy, mut client) = world();
    let mut idle = Client::connect(&proxy);
    assert!(idle.is_served());
    proxy.black_hole();
    let mut second = Client::connect(&proxy);
    assert!(client.is_not_answered("unheard"));
    assert!(second.is_not_answered("unheard"));
    assert!(!echo.heard.lock().unwrap().contains(&"unheard".to_owned()));
    proxy.heal();
    assert!(client.is_cut() && second.is_cut());
    assert!(idle.is_served(), "it has lost nothing");
}

#[test]
fn a_cut_resets_connections_and_new_ones_are_served() {
    let (_echo, proxy, mut client) = world();
    // A cut does not wait for what is under way.
    proxy.delay(Duration::from_secs(60));
    client.send("slow");
    proxy.cut();
    assert!(client.is_cut());
    proxy.heal();
    assert!(Client::connect(&proxy).is_served());
}

#[test]
fn refused_connections_are_new_ones() {
    let (_echo, proxy, mut client) = world();
    proxy.refuse();
    let refused = TcpStream::connect(("127.0.0.1", proxy.port())).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    assert!(client.is_served());
    proxy.heal();
    assert!(client.is_served());
    assert!(Client::connect(&proxy).is_served());
}

#[test]
fn the_reply_to_one_request_is_lost_and_the_connection_says_nothing_more() {
    let (echo, proxy, mut client) = world();
    proxy.lose_replies(1, b"grant", Loss::Silence);
    assert!(client.is_answered("other"));
    assert!(client.is_not_answered("a grant"));
    echo.wait_until_heard("a grant");
    assert!(client.is_not_answered("later"));
    let mut second = Client::connect(&proxy);
    assert!(second.is_answered("a grant"));
    proxy.heal();
    assert!(client.is_cut() && second.is_served());
}

#[test]
fn a_lost_reply_can_cut_its_connection() {
    let (echo, proxy, mut client) = world();
    proxy.lose_replies(2, b"grant", Loss::Cut);
    for _ in 0..2 {
        // In two packets: the bytes are found where they meet.
        client.0.get_mut().write_all(b"a gr").unwrap();
        assert_eq!(client.receive(Duration::from_millis(20)), Ok(None));
        client.send("ant");
        assert!(client.is_cut());
        client = Client::connect(&proxy);
    }
    echo.wait_until_heard("a grant");
    assert!(client.is_answered("a grant"));
}

#[test]
fn a_dead_server_ends_connections() {
    let proxy = {
        let gone = TcpListener::bind("127.0.0.1:0").unwrap();
        Proxy::start(gone.local_addr().unwrap())
    };
    let mut client = Client::connect(&proxy);
    assert_ne!(client.receive(PATIENCE), Ok(None));
}

/// What measures time has the machine for itself.
mod alone {
    use std::time::Instant;

    use super::*;

    #[test]
    #[allow(clippy::disallowed_methods, reason = "a delay is measured")]
    fn a_delay_holds_each_way_and_does_not_add_up() {
        let (_echo, proxy, mut client) = world();
        proxy.delay(Duration::from_millis(150));
        let start = Instant::now();
        for number in 0..5 {
            client.send(&number.to_string());
            std::thread::sleep(Duration::from_millis(10));
        }
        for number in 0..5 {
            assert_eq!(client.receive(PATIENCE), Ok(Some(number.to_string())));
            assert!(start.elapsed() >= Duration::from_millis(300 + 10 * number));
        }
        // One after the other they would take 1.5 s.
        assert!(start.elapsed() < Duration::from_millis(1000), "{:?}", start.elapsed());
        proxy.heal();
        assert!(client.is_answered("soon"));
    }
}
