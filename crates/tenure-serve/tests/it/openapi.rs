//! `openapi.json` says what the server does: its routes, and the fields that they take. What they answer is compared by `schemathesis.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::access::{Tokens, bearer, made};
use crate::http::{Serving, anywhere, ask, new_id, text_of};

const DOCUMENT: &str = include_str!("../../src/openapi.json");

/// An operation of the document, and a request for it.
pub(crate) struct Operation {
    pub(crate) method: String,
    /// Its path, as the document has it.
    pub(crate) path: String,
    /// Whether everybody may ask for it.
    pub(crate) is_public: bool,
    /// What is asked for, with those of the parameters that have an example.
    pub(crate) target: String,
    /// The example; `Null`, if it takes no body.
    pub(crate) body: Value,
    /// The names of its parameters in the query.
    query: BTreeSet<String>,
    /// The schema of its body.
    schema: Value,
}

fn document() -> Value {
    serde_json::from_str(DOCUMENT).expect("JSON")
}

/// What a reference leads to, or what stands here.
fn resolved<'a>(document: &'a Value, value: &'a Value) -> &'a Value {
    match value["$ref"].as_str() {
        Some(to) => document.pointer(to.trim_start_matches('#')).unwrap_or_else(|| panic!("{to}")),
        None => value,
    }
}

/// The text of an example, as it stands in a path or a query.
fn text(example: &Value) -> String {
    example.as_str().map_or_else(|| example.to_string(), str::to_owned)
}

/// All operations.
pub(crate) fn operations() -> Vec<Operation> {
    let document = document();
    let mut operations = Vec::new();
    for (path, item) in document["paths"].as_object().expect("paths") {
        for (method, operation) in item.as_object().expect("operations") {
            if method != "parameters" {
                let shared = item["parameters"].as_array().into_iter().flatten();
                let parameters = shared.chain(operation["parameters"].as_array().into_iter().flatten());
                let parameters: Vec<&Value> = parameters.map(|value| resolved(&document, value)).collect();
                operations.push(read(&document, (path, &method.to_uppercase()), operation, &parameters));
            }
        }
    }
    operations
}

fn read(
    document: &Value,
    (path, method): (&str, &str),
    operation: &Value,
    parameters: &[&Value],
) -> Operation {
    let (mut target, mut asked, mut query) = (path.to_owned(), Vec::new(), BTreeSet::new());
    for parameter in parameters {
        let name = parameter["name"].as_str().expect("a name");
        if parameter["in"] == "path" {
            let example = parameter.get("example").map_or_else(new_id, text);
            target = target.replace(&format!("{{{name}}}"), &example);
            continue;
        }
        query.insert(name.to_owned());
        if let Some(example) = parameter.get("example") {
            asked.push(format!("{name}={}", text(example)));
        }
    }
    if !asked.is_empty() {
        target = format!("{target}?{}", asked.join("&"));
    }
    let content = &operation["requestBody"]["content"]["application/json"];
    Operation {
        method: method.to_owned(),
        path: path.to_owned(),
        is_public: operation["security"].as_array().is_some_and(Vec::is_empty),
        target,
        body: content["example"].clone(),
        query,
        schema: resolved(document, &content["schema"]).clone(),
    }
}

/// The method and the pattern of each route in the source, but for the dashboard's files.
fn routes() -> BTreeSet<(String, String)> {
    let source = include_str!("../../src/routes.rs");
    let lines = source.lines().filter_map(|line| line.split_once(".route(\"")).map(|(_, row)| row);
    let mut routes = BTreeSet::new();
    for line in lines {
        let (pattern, methods) = line.split_once('"').expect("a pattern");
        if !["/", "/assets/{name}"].contains(&pattern) {
            let is_used = |method: &&str| methods.contains(&format!("{method}("));
            let methods = ["get", "put", "post", "delete", "patch"].into_iter().filter(is_used);
            routes.extend(methods.map(|method| (method.to_uppercase(), pattern.to_owned())));
        }
    }
    assert!(routes.len() >= 25, "{routes:?}");
    routes
}

/// The route that serves an operation: where the document has one for each act, a route may have one for all.
fn route_of(operation: &Operation, routes: &BTreeSet<(String, String)>) -> (String, String) {
    let is_alike = |pattern: &str| {
        let (wanted, given): (Vec<_>, Vec<_>) =
            (pattern.split('/').collect(), operation.path.split('/').collect());
        wanted.len() == given.len()
            && wanted.iter().zip(given).all(|(wanted, given)| *wanted == given || wanted.starts_with('{'))
    };
    let exact = (operation.method.clone(), operation.path.clone());
    if routes.contains(&exact) {
        return exact;
    }
    let alike = routes.iter().find(|(method, pattern)| *method == operation.method && is_alike(pattern));
    alike.unwrap_or_else(|| panic!("{exact:?} is in the document alone")).clone()
}

#[test]
fn the_document_has_each_route_and_no_other() {
    let routes = routes();
    let documented: BTreeSet<_> = operations().iter().map(|operation| route_of(operation, &routes)).collect();
    assert_eq!(documented, routes, "a route needs its operation in src/openapi.json");
}

/// The fields of which an error says that they are known.
fn known(answer: &Value) -> BTreeSet<String> {
    let detail = answer["detail"].as_str().unwrap_or_default();
    let (_, expected) = detail.split_once(", expected ").unwrap_or_else(|| panic!("no fields: {answer}"));
    expected.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// The fields of a schema of objects.
fn fields(schema: &Value) -> BTreeSet<String> {
    schema["properties"].as_object().expect("fields").keys().cloned().collect()
}

#[test]
fn the_document_has_each_field_that_a_request_takes_and_no_other() {
    let (secret, entry) = made("all", &["claim", "read", "operate", "push", "take", "payload", "metrics"]);
    let tokens = Tokens::new(&entry);
    let server = Serving::memory(anywhere().tokens(tokens.file()));
    let send = |operation: &Operation, query: &str, body: Option<&Value>| {
        let path = operation.target.split('?').next().expect("a path");
        ask(server.address, &format!("{} {path}{query}", operation.method), &bearer(&secret), body).body
    };
    let (routes, document) = (routes(), document());
    // What a route takes, and what its operations have.
    let mut both: BTreeMap<(String, String), [BTreeSet<String>; 2]> = BTreeMap::new();
    for operation in operations() {
        let entry = both.entry(route_of(&operation, &routes)).or_default();
        if !operation.query.is_empty() {
            let body = Some(&operation.body).filter(|body| !body.is_null());
            let known = known(&send(&operation, "?no-such-field=1", body));
            assert_eq!(known, operation.query, "{} {}", operation.method, operation.path);
        }
        if operation.schema.is_null() {
            continue;
        }
        entry[0].extend(known(&send(&operation, "", Some(&json!({"no such field": 1})))));
        entry[1].extend(fields(&operation.schema));
        for (list, schema) in operation.schema["properties"].as_object().expect("fields") {
            if schema["type"] == "array" {
                let answer = send(&operation, "", Some(&json!({list: [{"no such field": 1}]})));
                let items = resolved(&document, &schema["items"]);
                assert_eq!(known(&answer), fields(items), "{list} of {}", operation.path);
            }
        }
    }
    // It is known to be refused: only dead letters are replayed.
    both.get_mut(&("POST".to_owned(), "/v1/queue/replay".to_owned())).expect("a route")[0].remove("which");
    for (route, [taken, documented]) in both {
        assert_eq!(taken, documented, "{route:?}");
    }
}

#[test]
fn the_kinds_of_errors_are_those_of_the_server() {
    let server = Serving::memory(anywhere());
    let document = document();
    let kinds = document["components"]["schemas"]["ProblemKind"]["enum"].as_array().expect("kinds");
    for kind in kinds {
        let page = server.ask(&format!("GET /v1/problems/{}", kind.as_str().expect("a kind")));
        assert_eq!((page.status, &page.body["kind"]), (200, kind));
    }
    let source = include_str!("../../src/problem.rs");
    let table = source.split_once("kinds! {\n").and_then(|(_, table)| table.split_once("\n}\n"));
    assert_eq!(table.expect("a table").0.lines().count(), kinds.len());
}

#[test]
fn the_docs_have_the_document_that_the_server_shows() {
    let server = Serving::memory(anywhere());
    let shown = text_of(&mut crate::http::open(server.address, "GET /v1/openapi.json", "", None)).1;
    assert!(shown == DOCUMENT, "GET /v1/openapi.json is another document");
    let page = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/operating/openapi.json");
    if std::env::var_os("SNAPSHOTS").is_some_and(|mode| mode == "overwrite") {
        fs::write(&page, DOCUMENT).expect("a file");
    }
    let copy = fs::read_to_string(&page).expect("docs/operating/openapi.json");
    assert!(copy == DOCUMENT, "docs/operating/openapi.json is another document: cargo xtask snapshots");
}
