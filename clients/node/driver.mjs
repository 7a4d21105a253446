// This client in the suite for thin clients: `crates/tenure-testkit/examples/thin_clients/driver.rs` has the protocol.

import { createInterface } from 'node:readline';
import { pathToFileURL } from 'node:url';

// A copy that is broken on purpose comes first.
const [client, url] = process.argv.slice(2);
const { connect, TenureError } = await import(pathToFileURL(client));

const tenure = connect(url);
const leases = new Map();
const deliveries = new Map();
const say = (key, text) => process.stdout.write(`${key} ${text}\n`);

function granted(key, lease) {
  leases.set(key, lease);
  lease.onLost(() => say(key, 'told'));
  return `granted ${lease.token}`;
}

const commands = {
  acquire: async (key, name, ttl, wait) => granted(key, await tenure.mutex(name, { ttlMs: Number(ttl) }).acquire({ waitMs: Number(wait) })),
  try: async (key, name, ttl) => {
    const lease = await tenure.mutex(name, { ttlMs: Number(ttl) }).tryAcquire();
    return lease === null ? 'busy' : granted(key, lease);
  },
  check: (key) => {
    try {
      leases.get(key).check();
      return 'held';
    } catch (error) {
      if (error.kind !== 'lost') {
        throw error;
      }
      return 'lost';
    }
  },
  release: async (key) => ((await leases.get(key).release()) ? 'released yes' : 'released no'),
  push: async (key, queue, text) => {
    await tenure.queue(queue).push(text);
    return 'pushed';
  },
  take: async (key, queue, ttl, wait) => {
    const delivery = await tenure.queue(queue, { ttlMs: Number(ttl) }).take({ waitMs: Number(wait) });
    deliveries.set(key, delivery);
    return delivery === null ? 'nothing' : `taken ${delivery.text}`;
  },
  ack: async (key) => {
    await deliveries.get(key).ack();
    return 'settled';
  },
  close: async () => {
    await tenure.close();
    return 'closed';
  },
};

const input = createInterface({ input: process.stdin });
input.on('line', async (line) => {
  const [command, key, ...words] = line.split(' ');
  if (command === 'exit') {
    // Nothing is left to do then.
    input.close();
    process.stdin.destroy();
    return;
  }
  try {
    const said = commands[command](key, ...words);
    // What needs no round trip is answered at once, in the order of the lines.
    say(key, said instanceof Promise ? await said : said);
  } catch (error) {
    say(key, `failed ${error instanceof TenureError ? error.kind : error}`);
  }
});
