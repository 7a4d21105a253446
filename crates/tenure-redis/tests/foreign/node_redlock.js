// Works under node-redlock's lock: node node_redlock.js PORT KEY ROUNDS. Prints how often somebody else was inside.

const Redis = require("ioredis");
const Redlock = require("redlock");

const [port, key, rounds] = [Number(process.argv[2]), process.argv[3], Number(process.argv[4])];
const pause = (ms) => new Promise((done) => setTimeout(done, ms));

async function main() {
  const server = new Redis(port, "127.0.0.1");
  const locks = new Redlock([server], { retryCount: -1, retryDelay: 2, retryJitter: 2 });
  let intruders = 0;
  for (let round = 0; round < rounds; round++) {
    const lock = await locks.lock(key, 10000);
    intruders += (await server.incr("inside")) !== 1;
    await pause(2);
    intruders += (await server.decr("inside")) !== 0;
    await lock.unlock();
    await pause(3);
  }
  console.log(intruders);
  server.disconnect();
}

main();
