//! Bells and observers.

use futures_util::stream::StreamExt;
use tenure_core::clock::{Clock, SystemClock};
use tenure_core::engine::{Engine, Wake};
use tenure_core::model::claim::{Keep, Name};

use crate::child::Process;
use crate::world::{Client, TestPlace, release, run, within};

#[test]
fn more_news_than_a_queue_takes_end_in_a_look_at_all() {
    let directory = TestPlace::new();
    run(async {
        let holder = Client::connect(&directory.place()).await;
        let mut waiter = Client::connect(&directory.place()).await;
        let mut held = Vec::new();
        for number in 0..40 {
            let name = format!("m{number}");
            held.push((holder.take(&name).await.0, name.clone(), waiter.queue(&name).await));
        }
        // All at once, while nobody reads the bell: this thread is the one that would.
        let blocking = holder.engine.blocking().unwrap();
        for (claim, name, _) in &held {
            blocking.release(&release(name, *claim)).unwrap();
        }
        loop {
            if waiter.wake().await == Wake::LookAtAll {
                break;
            }
        }
    });
}

#[test]
fn an_observer_sees_each_holder_and_the_end() {
    let directory = TestPlace::new();
    run(async {
        let client = Client::connect(&directory.place()).await;
        let watching = Client::connect(&directory.place()).await;
        let name = Name::new("leader").unwrap();
        let mut views = watching.engine.observe(name.clone());
        assert_eq!(within(views.next()).await.unwrap().unwrap(), None);
        let (claim, token) = client.take("leader").await;
        let view = within(views.next()).await.unwrap().unwrap().unwrap();
        assert_eq!((view.holds[0].claim, view.last_token), (Some(claim), token));
        let published = client.engine.publish(name.clone(), claim, b"address"[..].into(), Keep::WhileHeld);
        assert!(published.await.unwrap());
        let view = within(views.next()).await.unwrap().unwrap().unwrap();
        assert_eq!(view.value.as_deref(), Some(&b"address"[..]));
        client.release("leader", claim).await;
        assert_eq!(within(views.next()).await.unwrap().unwrap(), None);
        drop(views);
        // What remains is the row of the store's birth.
        let until = SystemClock.now() + crate::world::PATIENCE;
        while client.engine.rows().unwrap() > 1 {
            assert!(SystemClock.now() < until);
        }
    });
}

#[test]
fn an_observer_sees_the_death_of_the_holder_at_once() {
    let directory = TestPlace::new();
    run(async {
        let watching = Client::connect(&directory.place()).await;
        let mut there = Process::start(&directory.place());
        assert!(there.ask("try leader").starts_with("granted"));
        let mut views = watching.engine.observe(Name::new("leader").unwrap());
        assert!(within(views.next()).await.unwrap().unwrap().is_some());
        let killed_at = SystemClock.now();
        there.kill();
        assert_eq!(within(views.next()).await.unwrap().unwrap(), None);
        assert!(SystemClock.now().since(killed_at).as_millis() < 500);
    });
}

#[test]
fn an_observer_in_another_process_is_told() {
    let directory = TestPlace::new();
    run(async {
        let watching = Client::connect(&directory.place()).await;
        let mut views = watching.engine.observe(Name::new("m").unwrap());
        assert_eq!(within(views.next()).await.unwrap().unwrap(), None);
        let mut there = Process::start(&directory.place());
        let granted = there.ask("try m");
        let view = within(views.next()).await.unwrap().unwrap().unwrap();
        assert_eq!(granted, format!("granted {}", view.last_token));
    });
}

#[test]
fn pages_list_what_is_held_by_name() {
    let directory = TestPlace::new();
    run(async {
        let client = Client::connect(&directory.place()).await;
        let mut there = Process::start(&directory.place());
        for number in 0..150 {
            client.take(&format!("a/{number:03}")).await;
        }
        assert!(there.ask("try a/dead").starts_with("granted"));
        assert!(there.ask("try b").starts_with("granted"));
        there.kill();
        client.take("a").await;
        let (mut after, mut found) = (None, Vec::new());
        loop {
            let page = client.engine.inspect("a/".to_owned(), after.clone(), 100).await.unwrap();
            let Some(last) = page.last() else { break };
            after = Some(last.resource.clone());
            found.extend(page.into_iter().map(|view| view.resource.to_string()));
        }
        let expected: Vec<_> = (0..150).map(|number| format!("a/{number:03}")).collect();
        assert_eq!(found, expected, "what the dead held is not listed");
    });
}
