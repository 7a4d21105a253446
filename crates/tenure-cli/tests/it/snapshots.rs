//! What the command says, word for word. `TRYCMD=overwrite` writes them anew.

use crate::world::World;

#[test]
fn help_and_errors_are_as_written() {
    let world = World::new();
    trycmd::TestCases::new()
        .case("tests/cmd/*.trycmd")
        .env("TENURE_ENGINE", world.engine())
        .env("TENURE_LOG", "")
        .env("COLUMNS", "100")
        .run();
}
