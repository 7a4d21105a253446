//! One reader, by the name of the program.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use tenure_core::testing::fuzz::Target;

const TARGETS: &[&[Target]] = &[
    tenure_core::testing::fuzz::TARGETS,
    tenure_etcd::fuzz::TARGETS,
    tenure_fence::fuzz::TARGETS,
    tenure_local::fuzz::TARGETS,
    tenure_mysql::fuzz::TARGETS,
    tenure_ordered::fuzz::TARGETS,
    tenure_postgres::fuzz::TARGETS,
    tenure_redis::fuzz::TARGETS,
    tenure_redlock::fuzz::TARGETS,
    tenure_sql::fuzz::TARGETS,
    tenure_zookeeper::fuzz::TARGETS,
];

fn target() -> &'static Target {
    let name = env!("CARGO_BIN_NAME");
    TARGETS.iter().copied().flatten().find(|target| target.name == name).expect("each program has a target")
}

fuzz_target!(
    init: {
        // libFuzzer begins with what is in this folder.
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/seeds").join(target().name);
        std::fs::create_dir_all(&folder).expect("a folder for seeds");
        for (number, seed) in (target().seeds)().into_iter().enumerate() {
            std::fs::write(folder.join(number.to_string()), seed).expect("a seed");
        }
    },
    |bytes: &[u8]| (target().read)(bytes)
);
