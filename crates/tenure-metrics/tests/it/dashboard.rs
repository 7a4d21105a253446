//! The dashboard of the documents. Debian has no Grafana, so it is read as what it is: JSON with expressions in it.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::rules;

/// The variables of the dashboard, and what stands in for what Grafana would say.
const CHOICES: [&str; 4] = ["datasource", "engine", "scope", "queue"];
const INTERVAL: &str = "$__rate_interval";

fn dashboard() -> Value {
    serde_json::from_str(&rules::text("grafana.json")).expect("the dashboard is JSON")
}

/// Calls something for each object, at whatever depth.
fn each_object<'a>(value: &'a Value, found: &mut impl FnMut(&'a serde_json::Map<String, Value>)) {
    match value {
        Value::Object(object) => {
            found(object);
            object.values().for_each(|value| each_object(value, found));
        }
        Value::Array(list) => list.iter().for_each(|value| each_object(value, found)),
        _ => {}
    }
}

/// Returns all expressions, with an interval that Grafana would choose.
pub(crate) fn expressions() -> Vec<String> {
    let (dashboard, mut found) = (dashboard(), Vec::new());
    each_object(&dashboard, &mut |object| {
        if let Some(expression) = object.get("expr").and_then(Value::as_str) {
            found.push(expression.replace(INTERVAL, "5m"));
        }
    });
    found
}

#[test]
fn the_dashboard_names_only_what_we_render() {
    let known = rules::known();
    let expressions = expressions();
    assert!(expressions.len() > 20, "{expressions:?}");
    for expression in expressions {
        let unknown = known.unknown(&expression);
        assert!(unknown.is_empty(), "{unknown:?} in {expression}");
        let chosen = expression.split('$').skip(1).map(|rest| rest.split('"').next().unwrap_or_default());
        let chosen: Vec<&str> = chosen.filter(|name| !CHOICES.contains(name)).collect();
        assert!(chosen.is_empty(), "{chosen:?} is no variable of the dashboard: {expression}");
    }
}

#[test]
fn the_choices_are_labels_of_what_we_render() {
    let (known, dashboard) = (rules::known(), dashboard());
    let choices = dashboard["templating"]["list"].as_array().expect("variables");
    let names: Vec<&str> = choices.iter().filter_map(|choice| choice["name"].as_str()).collect();
    assert_eq!(names, CHOICES);
    assert_eq!(choices[0]["type"], "datasource");
    for choice in &choices[1..] {
        let query = choice["query"]["query"].as_str().expect("a query");
        let inner = query.strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(')'));
        let (selector, label) = inner.and_then(|inner| inner.rsplit_once(", ")).expect("values of a label");
        assert_eq!(known.unknown(&format!("sum by ({label}) ({selector})")), Vec::<String>::new(), "{query}");
        assert_eq!(choice["name"], label);
    }
}

#[test]
fn each_panel_is_one_in_its_place_and_asks_the_prometheus_that_is_chosen() {
    let dashboard = dashboard();
    let (mut ids, mut taken) = (BTreeSet::new(), BTreeSet::new());
    for panel in dashboard["panels"].as_array().expect("panels") {
        let title = panel["title"].as_str().expect("a title");
        assert!(ids.insert(panel["id"].as_u64().expect("an id")), "{title} has the id of another one");
        let at = |side: &str| panel["gridPos"][side].as_u64().expect("a place");
        for (x, y) in (0..at("w")).flat_map(|x| (0..at("h")).map(move |y| (x, y))) {
            let (x, y) = (at("x") + x, at("y") + y);
            assert!(x < 24 && taken.insert((x, y)), "{title} lies on another panel at {x}, {y}");
        }
    }
    let rows = dashboard["panels"].as_array().into_iter().flatten().filter(|panel| panel["type"] == "row");
    let rows: Vec<&str> = rows.filter_map(|row| row["title"].as_str()).collect();
    assert_eq!(rows, ["Now", "Locks", "Safety", "Store", "Queues", "Jobs", "Service"]);
    let mut asked = 0;
    each_object(&dashboard, &mut |object| {
        if let Some(datasource) = object.get("datasource") {
            assert_eq!(*datasource, json!({"type": "prometheus", "uid": "${datasource}"}));
            asked += 1;
        }
    });
    assert!(asked > 40, "{asked}");
}
