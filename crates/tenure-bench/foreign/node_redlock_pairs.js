// Takes and releases node-redlock's locks: node node_redlock_pairs.js PORT[,PORT...] TASKS WARM_UP PERIOD (s).
// Prints pairs for a second, all pairs since the beginning, and processor time in seconds.

const Redis = require("ioredis");
const Redlock = require("redlock");

const [ports, tasks] = [process.argv[2].split(","), Number(process.argv[3])];
const [warmUp, period] = [Number(process.argv[4]), Number(process.argv[5])];
const pause = (s) => new Promise((done) => setTimeout(done, s * 1000));

async function main() {
  const servers = ports.map((port) => new Redis(Number(port), "127.0.0.1"));
  const locks = new Redlock(servers, { retryCount: -1 });
  let pairs = 0;
  let isOver = false;
  const work = async (task) => {
    while (!isOver) {
      const lock = await locks.lock(`foreign/${task}`, 30000);
      await lock.unlock();
      pairs++;
    }
  };
  const workers = Array.from({ length: tasks }, (_, task) => work(task));
  await pause(warmUp);
  const [before, began] = [pairs, process.hrtime.bigint()];
  await pause(period);
  const rate = (pairs - before) / (Number(process.hrtime.bigint() - began) / 1e9);
  const { user, system } = process.cpuUsage();
  console.log(rate, pairs, (user + system) / 1e6);
  isOver = true;
  await Promise.all(workers);
  servers.forEach((server) => server.disconnect());
}

main();
