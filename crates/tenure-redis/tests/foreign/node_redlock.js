// Works under node-redlock's lock: node node_redlock.js PORT[,PORT...] KEY ROUNDS. Prints how often somebody else was inside.

const Redis = require("ioredis");
const Redlock = require("redlock");

const [ports, key, rounds] = [process.argv[2].split(","), process.argv[3], Number(process.argv[4])];
const pause = (ms) => new Promise((done) => setTimeout(done, ms));

async function main() {
  const servers = ports.map((port) => new Redis(Number(port), "127.0.0.1"));
  const server = servers[0];
  const locks = new Redlock(servers, { retryCount: -1, retryDelay: 2, retryJitter: 2 });
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
  servers.forEach((server) => server.disconnect());
}

main();
