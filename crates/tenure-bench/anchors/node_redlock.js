// One side of the comparison in a process of its own: compare.py says what its arguments and its lines are.

const readline = require('node:readline');
const Redis = require('ioredis');
const Redlock = require('redlock');

const [, work, workers, ttl, url, name] = process.argv.slice(2);
const { hostname, port } = new URL(url);
// It gives up after 10 attempts unless it is told otherwise.
const locks = new Redlock([new Redis(Number(port), hostname)], { retryCount: -1 });

const tally = { holds: Array(Number(workers)).fill(0), changes: 0, longest_ms: 0 };
const asked = Array(Number(workers)).fill(null);
let last = null;

function longest(worker) {
  if (asked[worker] !== null) {
    tally.longest_ms = Math.max(tally.longest_ms, performance.now() - asked[worker]);
  }
}

async function run(worker) {
  const key = work === 'pairs' ? `${name}/${worker}` : name;
  for (;;) {
    asked[worker] = performance.now();
    const lock = await locks.lock(key, Number(ttl));
    longest(worker);
    asked[worker] = null;
    tally.holds[worker]++;
    if (last !== worker) {
      last = worker;
      tally.changes++;
    }
    await lock.unlock();
  }
}

async function main() {
  const lines = readline.createInterface({ input: process.stdin });
  lines.on('close', () => process.exit(0));
  if (work === 'hold') {
    lines.once('line', async () => {
      await locks.lock(name, Number(ttl));
      console.log('held');
    });
    console.log('ready');
    return;
  }
  lines.on('line', () => {
    // Waits that still go on count as far as they have come.
    asked.forEach((_, worker) => longest(worker));
    console.log(JSON.stringify(tally));
    tally.longest_ms = 0;
  });
  const all = asked.map((_, worker) => run(worker));
  console.log('ready');
  await Promise.all(all);
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
