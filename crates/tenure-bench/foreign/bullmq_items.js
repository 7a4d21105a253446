// Pushes and works through BullMQ's jobs: node bullmq_items.js PORT TASKS WARM_UP PERIOD (s). Prints jobs for a second.

const { Queue, Worker } = require("bullmq");

const [port, tasks] = [Number(process.argv[2]), Number(process.argv[3])];
const [warmUp, period] = [Number(process.argv[4]), Number(process.argv[5])];
const pause = (s) => new Promise((done) => setTimeout(done, s * 1000));

async function main() {
  const connection = { host: "127.0.0.1", port, maxRetriesPerRequest: null };
  const queue = new Queue("bench", { connection, defaultJobOptions: { removeOnComplete: true } });
  const payload = "x".repeat(100);
  let done = 0;
  let isOver = false;
  const waiting = [];
  const worker = new Worker("bench", async () => {}, { connection, concurrency: tasks });
  worker.on("completed", () => {
    done++;
    // As many are under way as there are tasks.
    const next = waiting.shift();
    if (next) next();
  });
  await worker.waitUntilReady();
  const produce = async () => {
    while (!isOver) {
      const worked = new Promise((next) => waiting.push(next));
      await queue.add("job", payload);
      await worked;
    }
  };
  for (let task = 0; task < tasks; task++) produce();
  await pause(warmUp);
  const [before, began] = [done, process.hrtime.bigint()];
  await pause(period);
  console.log((done - before) / (Number(process.hrtime.bigint() - began) / 1e9));
  process.exit(0);
}

main();
