// What the suite for thin clients does not ask: `TENURE_TEST_COMMAND=tenure node --test clients/node/test.mjs`.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { setTimeout as pause } from 'node:timers/promises';
import { fileURLToPath, pathToFileURL } from 'node:url';

import { connect } from './tenure.mjs';

const client = fileURLToPath(new URL('tenure.mjs', import.meta.url));
const folder = mkdtempSync(join(tmpdir(), 'tenure-node-'));
const url = `unix:${folder}/tenure.sock`;
let server;

before(async () => {
  server = spawn(process.env.TENURE_TEST_COMMAND, ['--engine', `local:${folder}/locks`, 'serve', '--listen', url], { stdio: ['ignore', 'ignore', 'pipe'] });
  await once(server.stderr, 'data');
});

after(() => {
  server.kill('SIGKILL');
  rmSync(folder, { recursive: true });
});

/** Runs lines as a program of its own; what it printed, and how it ended. */
async function program(name, text) {
  const file = join(folder, `${name}.mjs`);
  writeFileSync(file, text);
  const child = spawn(process.execPath, [file], { stdio: ['ignore', 'pipe', 'inherit'] });
  let printed = '';
  child.stdout.on('data', (part) => (printed += part));
  const [code] = await once(child, 'close');
  return { printed, code };
}

test('the lines of the guide work', async () => {
  const page = readFileSync(new URL('../../docs/guides/node-and-php.md', import.meta.url), 'utf8');
  const blocks = [...page.matchAll(/^```js\n(.*?)^```/gms)].map(([, lines]) => lines);
  assert.ok(blocks.length >= 2);
  const lines = blocks.join('\n').replace("'./tenure.mjs'", JSON.stringify(pathToFileURL(client))).replace('unix:/run/tenure.sock', url);
  const before = `
    const charge = async (token) => console.log('charged', token > 0);
    const load = async () => 'the rates';
    const refund = async (order, token) => { console.log('refunded', order, token > 0); setTimeout(() => listener.stop(), 0); };`;
  const { printed, code } = await program('guide', lines.replace(/^(import .*)$/m, `$1\n${before}`));
  assert.equal(code, 0);
  assert.deepEqual(printed.trim().split('\n'), ['charged true', 'charged true', 'worker 0', 'the rates', 'refunded order 4711 true']);
});

test('an abort ends a wait, and leaves nothing in line', async () => {
  const tenure = connect(url);
  const lease = await tenure.mutex('aborted').acquire();
  const abort = new AbortController();
  const waiting = tenure.mutex('aborted').acquire({ signal: abort.signal });
  await pause(50);
  abort.abort(new Error('no more'));
  await assert.rejects(waiting, /no more/);
  await lease.release();
  const next = await tenure.mutex('aborted').acquire({ waitMs: 10_000 });
  assert.ok(next.token > lease.token);
  await tenure.close();
  assert.equal(next.isLost, true);
});

test('one loads for all, and an error of it is thrown on', async () => {
  const tenure = connect(url);
  const flight = tenure.singleFlight('flight', 60_000);
  await assert.rejects(flight.get(() => Promise.reject(new Error('no rates'))), /no rates/);
  let loads = 0;
  const load = async () => {
    loads++;
    await pause(100);
    return 'value';
  };
  const found = await Promise.all(Array.from({ length: 5 }, () => flight.get(load)));
  assert.equal(loads, 1);
  assert.deepEqual(found.map((one) => one.value.toString()), Array(5).fill('value'));
  await tenure.close();
});

test('an item that a handler fails on comes again, and is a dead letter in the end', async () => {
  const tenure = connect(url);
  const queue = tenure.queue('failing', { attemptsMax: 2 });
  await queue.push('bad');
  const attempts = [];
  const errors = [];
  const listener = queue.listen(
    2,
    async (delivery) => {
      attempts.push(delivery.attempt);
      throw new Error('not today');
    },
    { onError: (error) => errors.push(error.message) },
  );
  while (attempts.length < 2) {
    await pause(20);
  }
  await listener.stop();
  assert.deepEqual([attempts, errors], [[1, 2], ['not today', 'not today']]);
  assert.equal(await queue.take(), null);
  await tenure.close();
});

test('what cannot be right is said before anything is sent', async () => {
  assert.throws(() => connect('redis://127.0.0.1'), { kind: 'invalid' });
  assert.throws(() => connect(url, { token: 'a\r\nb' }), { kind: 'invalid' });
  const tenure = connect(url);
  assert.throws(() => tenure.mutex('a', { ttl: 5 }), { kind: 'invalid' });
  await assert.rejects(tenure.mutex('').tryAcquire(), { kind: 'invalid' });
  await tenure.semaphore('units', 2).acquire();
  await assert.rejects(tenure.semaphore('units', 3).tryAcquire(), { kind: 'conflict' });
  await tenure.close();
});

test('a program that ends although it waits for nothing releases what it holds', async () => {
  const { code } = await program(
    'ends',
    `import { connect } from ${JSON.stringify(pathToFileURL(client))};
     await connect('${url}').mutex('ended', { ttlMs: 600_000 }).acquire();`,
  );
  assert.equal(code, 0);
  const tenure = connect(url);
  assert.notEqual(await tenure.mutex('ended').tryAcquire(), null);
  await tenure.close();
});
