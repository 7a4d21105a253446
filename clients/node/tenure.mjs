/**
 * A client of `tenure serve` for Node 18 or newer, in one file without dependencies: locks, slots, one load for all, and queues.
 *
 *     import { connect } from './tenure.mjs';
 *     const tenure = connect('unix:/run/tenure.sock');
 *     const lease = await tenure.mutex('billing/4711').acquire({ waitMs: 5_000 });
 *
 * What it keeps to (docs/operating/serve.md, "What a client does"):
 *
 * - A deadline is counted from when the answered request was sent. Each look at a lease compares it with a clock that goes on while the
 *   machine sleeps. A deadline that has passed is never moved.
 * - A claim has one id, and the same request is repeated until its answer is final. An id that is given up is released in the background.
 * - One timer renews all leases, many in one request. It is for keeping leases, and not for noticing that they are lost.
 *
 * It cannot stop code that runs: hand `lease.token` to whatever is written to. Code that keeps the event loop for longer than a ttl loses its leases.
 */

import { randomBytes } from 'node:crypto';
import { readFileSync } from 'node:fs';
import http from 'node:http';
import https from 'node:https';

/** The server gives up after 5 s. */
const ANSWER_MAX_MS = 5_500;
/** One request waits that long, so that a connection that has died unnoticed is not waited for much longer. */
const POLL_MS = 10_000;
/** How long a release, or the end of a client, waits for answers. */
const RELEASE_MAX_MS = 2_000;
/** What the server takes in one request. */
const BATCH_MAX = 256;
/** A timer stands still while the machine sleeps, so it is that short at most. */
const LOOK_EVERY_MS = 1_000;
/** Releases that are repeated in the background. What does not fit ends at its ttl. */
const RELEASES_MAX = 10_000;
/** The longest ttl of the server is a day; a number beyond these is no answer. */
const TEN_YEARS_MS = 3_650 * 86_400_000;

const KINDS = {
  lost: 'lost',
  finished: 'finished',
  busy: 'busy',
  unavailable: 'unavailable',
  overloaded: 'unavailable',
  rate: 'unavailable',
  too_slow: 'unavailable',
  conflict: 'conflict',
  not_found: 'not_found',
  invalid: 'invalid',
  method_not_allowed: 'invalid',
  too_large: 'invalid',
  unsupported_media_type: 'invalid',
  unauthorized: 'refused',
  forbidden: 'refused',
  unsupported: 'unsupported',
  elsewhere: 'elsewhere',
  internal: 'internal',
};

/**
 * What went wrong, by `kind`: `lost` stop the work; `timeout` others hold it for longer, and nothing is held; `unavailable` nobody knows;
 * `refused` the token does not allow it; `conflict`, `invalid` fix the code; `unsupported`, `elsewhere` the engine cannot; `internal` report it.
 */
export class TenureError extends Error {
  constructor(kind, text, { hint = null, resource = null, requestId = null, cause } = {}) {
    const about = resource === null || text.includes(`"${resource}"`) ? '' : ` ("${resource}")`;
    super(text + about + (hint === null ? '' : `: ${hint}`), cause === undefined ? undefined : { cause });
    this.name = 'TenureError';
    this.kind = kind;
    this.hint = hint;
    this.resource = resource;
    this.requestId = requestId;
    /** Whether a copy of the request was sent before, and not answered: it may have been done. */
    this.isRepeated = false;
  }
}

/** The outcome of one request is not known. It never leaves this file. */
class Unanswered extends Error {
  constructor(text, { problem = null, retryAfterMs = 0 } = {}) {
    super(text);
    this.problem = problem;
    this.retryAfterMs = retryAfterMs;
  }

  asUnavailable(resource) {
    const hint = this.problem === null ? 'is `tenure serve` there, and its store?' : this.problem.hint;
    return new TenureError('unavailable', this.message, { hint, resource, cause: this });
  }
}

const notUnderstood = () => new Unanswered('an answer that is not understood');

/** Milliseconds that go on while the machine sleeps: the monotonic clock, set right by `/proc/uptime` where the clock of the day has run away from it. */
class Clock {
  #slept = 0;
  #ahead = Date.now() - performance.now();
  #uptimeAhead = Clock.#uptime();

  now() {
    const gained = Date.now() - performance.now() - this.#ahead;
    if (Math.abs(gained) > 20) {
      this.#ahead += gained;
      const uptime = this.#uptimeAhead === null ? null : Clock.#uptime();
      // Without it a clock of the day that ran ahead is believed: a lease that ends too early is no harm.
      const slept = uptime === null ? this.#slept + Math.max(0, gained) : uptime - this.#uptimeAhead;
      // It has hundredths of a second, and two readings may be off by two of them.
      if (uptime === null || slept > this.#slept + 50) {
        this.#slept = Math.max(this.#slept, slept + 25);
      }
    }
    return performance.now() + this.#slept;
  }

  /** By how much uptime is ahead of the monotonic clock; null where there is none. */
  static #uptime() {
    try {
      for (let attempt = 0; attempt < 10; attempt++) {
        const before = performance.now();
        const uptime = Number.parseFloat(readFileSync('/proc/uptime', 'latin1')) * 1_000;
        // A pause between both would look like sleep.
        if (performance.now() - before < 5 && Number.isFinite(uptime)) {
          return uptime - before;
        }
      }
    } catch {
      // Another system than Linux.
    }
    return null;
  }
}

const clock = new Clock();
const newId = () => randomBytes(16).toString('hex');
const isWhole = (value) => Number.isSafeInteger(value) && value >= 0;
const isObject = (value) => typeof value === 'object' && value !== null && !Array.isArray(value);

function whole(fields, name) {
  if (!isWhole(fields[name])) {
    throw notUnderstood();
  }
  return fields[name];
}

/** A field of bytes, which is text where it can be, and else in base64 under another name. */
function bytes(fields, name) {
  if (typeof fields[name] === 'string') {
    return Buffer.from(fields[name], 'utf8');
  }
  if (typeof fields[`${name}_base64`] === 'string') {
    return Buffer.from(fields[`${name}_base64`], 'base64');
  }
  throw notUnderstood();
}

function problemOf(json) {
  if (!isObject(json) || typeof json.kind !== 'string' || !Object.hasOwn(KINDS, json.kind)) {
    return null;
  }
  const text = (name) => (typeof json[name] === 'string' ? json[name] : null);
  const said = text('detail') ?? text('title') ?? json.kind;
  return new TenureError(KINDS[json.kind], said, { hint: text('hint'), resource: text('resource'), requestId: text('request_id') });
}

/** Waits. The program may end meanwhile, unless somebody waits for what comes after. */
function pause(ms, { signal, isBackground = false } = {}) {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) {
      reject(signal.reason);
      return;
    }
    const aborted = () => {
      clearTimeout(timer);
      reject(signal.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener('abort', aborted);
      resolve();
    }, ms);
    if (isBackground) {
      timer.unref();
    }
    signal?.addEventListener('abort', aborted, { once: true });
  });
}

/** How long to wait before a request is repeated: longer each time, and not the same for all. */
class Backoff {
  #next = 20;

  next(unanswered) {
    const ms = (this.#next / 2) * (1 + Math.random());
    this.#next = Math.min(1_000, this.#next * 2);
    return Math.max(ms, unanswered?.retryAfterMs ?? 0);
  }

  reset() {
    this.#next = 20;
  }
}

/** Sends requests, and says what their answers mean: a reply, a TenureError, or that nobody knows. */
class Api {
  #module;
  #target;
  #base;
  #headers;

  constructor(url, token, tls) {
    this.#headers = { Accept: 'application/json' };
    if (token !== undefined) {
      if (!/^[A-Za-z0-9_-]+$/.test(token)) {
        throw new TenureError('invalid', 'the token has other characters than letters, digits, - and _');
      }
      this.#headers.Authorization = `Bearer ${token}`;
    }
    if (url.startsWith('unix:')) {
      this.#module = http;
      this.#target = { socketPath: url.slice('unix:'.length), headers: { Host: 'localhost' } };
      this.#base = '';
    } else {
      const parsed = tryUrl(url);
      const isHttp = parsed !== null && (parsed.protocol === 'http:' || parsed.protocol === 'https:');
      if (!isHttp || parsed.search !== '' || parsed.username !== '') {
        // Its text could show what is in the URL.
        throw new TenureError('invalid', 'the URL of the server is not understood', { hint: 'http://host:port, https://host:port or unix:/path' });
      }
      this.#module = parsed.protocol === 'https:' ? https : http;
      this.#target = { hostname: parsed.hostname.replace(/^\[|\]$/g, ''), port: parsed.port || undefined, headers: {} };
      this.#base = parsed.pathname.replace(/\/$/, '');
    }
    this.agent = new this.#module.Agent({ keepAlive: true, ...tls });
  }

  /** Sends once. */
  once(method, path, body, answerMaxMs, { signal } = {}) {
    if (signal?.aborted) {
      return Promise.reject(signal.reason);
    }
    const text = body === undefined ? null : JSON.stringify(body);
    const headers = { ...this.#target.headers, ...this.#headers };
    if (text !== null) {
      headers['Content-Type'] = 'application/json';
      headers['Content-Length'] = Buffer.byteLength(text);
    }
    return new Promise((resolve, reject) => {
      // Before anything is sent: a deadline that is counted from here is never too late.
      const sent = clock.now();
      const request = this.#module.request({ ...this.#target, agent: this.agent, method, path: this.#base + path, headers });
      const aborted = () => failed(signal.reason);
      const timer = setTimeout(() => failed(new Unanswered(`no answer within ${Math.round(answerMaxMs)} ms`)), answerMaxMs);
      const end = () => {
        clearTimeout(timer);
        signal?.removeEventListener('abort', aborted);
      };
      const failed = (error) => {
        end();
        request.destroy();
        reject(error);
      };
      signal?.addEventListener('abort', aborted, { once: true });
      request.on('error', (error) => failed(new Unanswered(`no answer: ${error.code ?? error.message}`)));
      request.on('response', (response) => {
        const parts = [];
        response.on('data', (part) => parts.push(part));
        // A body that was cut is no answer.
        response.on('error', () => failed(new Unanswered('the answer was cut')));
        response.on('close', () => response.complete || failed(new Unanswered('the answer was cut')));
        response.on('end', () => {
          end();
          try {
            resolve(Api.#reply(response, Buffer.concat(parts).toString('utf8'), sent));
          } catch (error) {
            reject(error);
          }
        });
      });
      request.end(text ?? undefined);
    });
  }

  static #reply(response, text, sent) {
    const status = response.statusCode;
    const isDone = status >= 200 && status < 300;
    let json = null;
    try {
      json = status === 204 ? null : JSON.parse(text);
    } catch {
      if (isDone) {
        throw notUnderstood();
      }
    }
    if (isDone) {
      return { status, json, sent };
    }
    const problem = problemOf(json);
    if ([408, 429, 502, 503, 504].includes(status) || problem?.kind === 'unavailable') {
      const seconds = response.headers['retry-after'];
      const retryAfterMs = /^[0-9]{1,4}$/.test(seconds ?? '') ? Number(seconds) * 1_000 : 0;
      throw new Unanswered(problem === null ? `status ${status}` : problem.message, { problem, retryAfterMs });
    }
    throw problem ?? new TenureError('internal', `status ${status}`, { hint: 'something else than `tenure serve` has answered, or an older one' });
  }

  /** Repeats what may be done twice until it is answered, for as long as patience has. */
  async repeat(method, path, body, resource, forMs) {
    const until = clock.now() + forMs;
    const backoff = new Backoff();
    let isRepeated = false;
    for (;;) {
      try {
        const answerMaxMs = Math.max(1, Math.min(ANSWER_MAX_MS, until - clock.now()));
        const reply = await this.once(method, path, body, answerMaxMs);
        return { ...reply, isRepeated };
      } catch (error) {
        if (!(error instanceof Unanswered)) {
          error.isRepeated = isRepeated;
          throw error;
        }
        isRepeated = true;
        const ms = backoff.next(error);
        if (clock.now() + ms >= until) {
          throw error.asUnavailable(resource);
        }
        await pause(ms);
      }
    }
  }
}

function tryUrl(url) {
  try {
    return new URL(url);
  } catch {
    return null;
  }
}

/** A grant, as this client may believe in it. Whoever sees its deadline pass first ends it for all, and nothing revives it. */
class Hold {
  #state = 'held';
  #loss = null;
  #deadline;
  #countedFrom;
  #callbacks = [];
  #ended = () => {};
  ttlSeen = 0;
  /** Of the keeper. */
  renewAt = 0;
  isRenewing = false;

  constructor(name, claim, token, slot, isDelivery, sent, expiresMs) {
    Object.assign(this, { name, claim, token, slot, isDelivery });
    this.#count(sent, expiresMs);
  }

  #count(sent, expiresMs) {
    const ms = Math.min(expiresMs, TEN_YEARS_MS);
    this.#countedFrom = sent;
    this.ttlSeen = Math.max(this.ttlSeen, ms);
    // The clocks of the server and of this machine do not run alike.
    this.#deadline = sent + ms - ms / 100 - 2;
  }

  get deadline() {
    return this.#deadline;
  }

  /** The answer to a renewal that was sent then. */
  renewed(sent, expiresMs) {
    // An answer that was overtaken by a later one says less.
    if (this.isHeld() && sent >= this.#countedFrom) {
      this.#count(sent, expiresMs);
      this.isHeld();
    }
  }

  /** Why it is lost; null if it is held, or was released. */
  loss() {
    if (this.#state === 'held' && clock.now() >= this.#deadline) {
      this.lose('not renewed in time');
    }
    return this.#loss;
  }

  isHeld() {
    return this.loss() === null && this.#state === 'held';
  }

  /** Ends it without its user. */
  lose(why, cause) {
    if (this.#state !== 'held') {
      return;
    }
    this.#state = 'lost';
    this.#loss = new TenureError('lost', `the lease was lost: ${why}`, { hint: cause?.hint, resource: this.name, requestId: cause?.requestId });
    const callbacks = this.#callbacks.splice(0);
    callbacks.forEach((callback) => queueMicrotask(() => callback(this.#loss)));
    this.#ended();
  }

  /** Its user lets go. True: it was held until now. */
  letGo() {
    if (!this.isHeld()) {
      return false;
    }
    this.#state = 'released';
    this.#callbacks = [];
    return true;
  }

  onLost(callback) {
    if (this.loss() !== null) {
      queueMicrotask(() => callback(this.#loss));
    } else if (this.#state === 'held') {
      this.#callbacks.push(callback);
    }
  }

  /** Who cleans up after a loss. */
  onEnded(ended) {
    this.#ended = ended;
    if (this.#state === 'lost') {
      ended();
    }
  }
}

/** Renews all leases of a client by one timer, and releases what was given up. Neither keeps the program running. */
class Keeper {
  #api;
  #timer = null;
  #releases = [];
  #isReleasing = false;
  #idle = [];
  isClosed = false;
  holds = new Set();
  lost = 0;
  renewals = 0;

  constructor(api) {
    this.#api = api;
  }

  /** Renews it from now on. */
  add(hold) {
    if (this.isClosed) {
      throw new TenureError('unavailable', 'the client is closed', { resource: hold.name });
    }
    this.holds.add(hold);
    this.#schedule(hold, clock.now() + hold.ttlSeen / 3, hold.ttlSeen / 24);
    hold.onEnded(() => this.#isLost(hold));
    this.#wake();
    return hold;
  }

  remove(hold) {
    this.holds.delete(hold);
  }

  #isLost(hold) {
    this.holds.delete(hold);
    this.lost++;
    if (!hold.isDelivery) {
      // The store may hold it for a while yet; nobody works under it.
      this.releaseLater(hold.name, hold.claim, hold.ttlSeen);
    }
  }

  /** On a grid, so that those of one ttl are renewed by one request. */
  #schedule(hold, at, grainMax) {
    const grain = 2 ** Math.floor(Math.log2(Math.max(1, grainMax)));
    hold.renewAt = Math.floor(at / grain) * grain;
  }

  #wake() {
    clearTimeout(this.#timer);
    if (this.holds.size === 0 || this.isClosed) {
      return;
    }
    const now = clock.now();
    let next = LOOK_EVERY_MS;
    for (const hold of this.holds) {
      next = Math.min(next, (hold.isRenewing ? hold.deadline : Math.min(hold.renewAt, hold.deadline)) - now);
    }
    this.#timer = setTimeout(() => this.#turn(), Math.max(0, Math.ceil(next))).unref();
  }

  #turn() {
    const now = clock.now();
    // By what is left of them: those that have little time must not have others time out with them.
    const batches = new Map();
    for (const hold of [...this.holds]) {
      if (hold.loss() !== null || hold.isRenewing || hold.renewAt > now) {
        continue;
      }
      hold.isRenewing = true;
      if (hold.isDelivery) {
        this.#renewDelivery(hold);
        continue;
      }
      const bits = Math.floor(Math.log2(Math.max(1, hold.deadline - now)));
      const batch = batches.get(bits) ?? [];
      batches.set(bits, batch);
      batch.push(hold);
      if (batch.length === BATCH_MAX) {
        batches.delete(bits);
        this.#renew(batch);
      }
    }
    batches.forEach((batch) => this.#renew(batch));
    this.#wake();
  }

  /** How long an answer may take, so that there is time for others if it does not come. */
  #answerMax(hold) {
    return Math.max(10, Math.min(ANSWER_MAX_MS, (hold.deadline - clock.now()) / 3));
  }

  async #renew(batch) {
    const claims = batch.map(({ name, claim }) => ({ name, claim }));
    const answerMaxMs = Math.min(...batch.map((hold) => this.#answerMax(hold)));
    const answers = new Map();
    let reply = null;
    let failure = null;
    try {
      reply = await this.#api.once('POST', '/v1/claims/renew', { claims }, answerMaxMs);
      const list = isObject(reply.json) && Array.isArray(reply.json.claims) ? reply.json.claims : [];
      list.filter(isObject).forEach((answer) => answers.set(answer.claim, answer));
    } catch (error) {
      failure = error;
    }
    for (const hold of batch) {
      const answer = answers.get(hold.claim);
      this.#again(hold, answer?.name === hold.name && Keeper.#heard(hold, answer, reply.sent), failure);
    }
    this.#wake();
  }

  async #renewDelivery(hold) {
    let isAnswered = false;
    let failure = null;
    try {
      const body = { queue: hold.name };
      const reply = await this.#api.once('POST', `/v1/deliveries/${hold.claim}/renew`, body, this.#answerMax(hold));
      isAnswered = isObject(reply.json) && Keeper.#heard(hold, reply.json, reply.sent);
    } catch (error) {
      failure = error;
      if (error.kind === 'lost') {
        hold.lose('the store has ended it', error);
      }
    }
    this.#again(hold, isAnswered, failure);
    this.#wake();
  }

  /** What an answer says of a hold. False: nothing. */
  static #heard(hold, answer, sent) {
    if (answer.state === 'lost' || answer.state === 'waiting') {
      // What waits again was granted by a store that has forgotten it.
      hold.lose('the store has ended it', problemOf(answer.problem) ?? undefined);
      return true;
    }
    if (answer.state !== 'held' || !isWhole(answer.expires_in_ms)) {
      return false;
    }
    if (isWhole(answer.token) && answer.token !== hold.token) {
      hold.lose('another grant has its place');
      return true;
    }
    hold.renewed(sent, answer.expires_in_ms);
    return true;
  }

  #again(hold, isAnswered, failure) {
    hold.isRenewing = false;
    if (!hold.isHeld()) {
      this.remove(hold);
      return;
    }
    const now = clock.now();
    const left = hold.deadline - now;
    if (isAnswered) {
      this.renewals++;
      const ms = Math.min(hold.ttlSeen / 3, Math.max(1, left / 3));
      this.#schedule(hold, now + ms, ms / 8);
    } else {
      // As the server asks, but not so late that one more failure loses the lease.
      const asked = failure instanceof Unanswered ? failure.retryAfterMs : 0;
      hold.renewAt = now + Math.min(Math.max(asked, Math.min(1_000, left / 10)), left / 2);
    }
  }

  /** Has a claim end, in the background: repeated until it is answered, or has ended by itself. */
  releaseLater(name, claim, forMs) {
    this.later('DELETE', releasePath(name, claim), undefined, forMs);
  }

  later(method, path, body, forMs) {
    if (this.#releases.length < RELEASES_MAX) {
      this.#releases.push({ method, path, body, until: clock.now() + forMs });
      this.#release();
    }
  }

  async #release() {
    if (this.#isReleasing) {
      return;
    }
    this.#isReleasing = true;
    const backoff = new Backoff();
    for (let release = this.#releases.shift(); release !== undefined; release = this.#releases.shift()) {
      try {
        await this.#api.once(release.method, release.path, release.body, RELEASE_MAX_MS);
        backoff.reset();
      } catch (error) {
        // What is refused ends at its ttl.
        const ms = error instanceof Unanswered ? backoff.next(error) : 0;
        if (error instanceof Unanswered && clock.now() + ms < release.until && !this.isClosed) {
          this.#releases.push(release);
          await pause(ms, { isBackground: true });
        }
      }
    }
    this.#isReleasing = false;
    this.#idle.splice(0).forEach((resolve) => resolve());
  }

  /** Waits until nothing is left to release, but not for ever. */
  async drain(mostMs) {
    if (this.#isReleasing) {
      let timer;
      const idle = new Promise((resolve) => this.#idle.push(resolve));
      const late = new Promise((resolve) => {
        timer = setTimeout(resolve, mostMs);
      });
      await Promise.race([idle, late]);
      clearTimeout(timer);
    }
  }

  close() {
    this.isClosed = true;
    clearTimeout(this.#timer);
  }
}

const releasePath = (name, claim) => `/v1/claims/${claim}?name=${encodeURIComponent(name)}`;

/** Clients that hold something when the program has nothing left to do. `process.exit()` gives no time for an answer. */
const clients = new Set();
process.on('beforeExit', () => clients.forEach((client) => client.letGo()));

/**
 * A client of the server at `http://host:port`, `https://host:port` or `unix:/path/of/socket`. One for each program; nothing is sent yet.
 *
 * `token`: by which the server knows this program. `patienceMs`: for how long everybody may be silent before a call fails as `unavailable`.
 * `tls`: `ca`, `cert` and `key` as of `https.Agent`.
 */
export function connect(url, options = {}) {
  return new Tenure(url, options);
}

/** What {@link connect} makes. */
class Tenure {
  #waiting = 0;

  constructor(url, { token, patienceMs = 15_000, tls } = {}) {
    this.api = new Api(url, token, tls);
    this.keeper = new Keeper(this.api);
    this.patienceMs = patienceMs;
  }

  /** One may hold it at a time. Settings, in ms: `ttlMs` (30 s), `maxHoldMs`, `minHoldMs`, `lockDelayMs`; and `label`, `floor`. */
  mutex(name, settings = {}) {
    return new Lock(this, name, settings, {});
  }

  /** Many readers or one writer: `.read()` and `.write()` are locks. */
  readWriteLock(name, settings = {}) {
    const side = (exclusive) => new Lock(this, name, settings, { kind: 'rw_lock', exclusive });
    return { read: () => side(false), write: () => side(true) };
  }

  /** So many may hold it at a time. All who name it say the same capacity. `weight`: how many units a lease takes. */
  semaphore(name, capacity, { weight = 1, ...settings } = {}) {
    return new Lock(this, name, settings, { kind: 'semaphore', capacity, weight });
  }

  /** Numbers from 0 on, each held by one at a time: `lease.slot`. */
  slotPool(name, slots, settings = {}) {
    return new Lock(this, name, settings, { kind: 'slot_pool', capacity: slots });
  }

  /** A value that one loads for all, and that is fresh for so long. */
  singleFlight(key, freshMs, settings = {}) {
    return new SingleFlight(this, key, freshMs, settings);
  }

  /** Work in line. Settings: `ttlMs`, `intervalMs`, `groupIntervalMs`, `attemptsMax`. */
  queue(name, settings = {}) {
    return new Queue(this, name, settings);
  }

  /** What this client has at this moment, for a monitor. No round trip. */
  counts() {
    return { held: this.keeper.holds.size, waiting: this.#waiting, lost: this.keeper.lost, renewals: this.keeper.renewals };
  }

  /** Has what it holds be lost, and releases it: for 2 s at most; the rest ends at its ttl. The client is of no use afterwards. */
  async close() {
    for (const hold of [...this.keeper.holds]) {
      // First nobody believes in it, then others may have it.
      hold.lose('the client was closed');
      if (hold.isDelivery) {
        this.releaseLater(hold);
      }
    }
    clients.delete(this);
    await this.keeper.drain(RELEASE_MAX_MS);
    this.keeper.close();
    this.api.agent.destroy();
  }

  /** The program has nothing left to do. */
  letGo() {
    for (const hold of [...this.keeper.holds]) {
      if (hold.letGo()) {
        this.keeper.remove(hold);
        this.releaseLater(hold);
      }
    }
    // The program ends when that is answered, or is late.
    this.keeper.drain(RELEASE_MAX_MS);
  }

  releaseLater(hold) {
    if (hold.isDelivery) {
      this.keeper.later('POST', `/v1/deliveries/${hold.claim}/return`, { queue: hold.name }, hold.ttlSeen);
    } else {
      this.keeper.releaseLater(hold.name, hold.claim, hold.ttlSeen);
    }
  }

  /** Renews what was granted from now on. */
  hold(hold) {
    clients.add(this);
    return this.keeper.add(hold);
  }

  waiting(change) {
    this.#waiting += change;
  }

  async release(hold) {
    this.keeper.remove(hold);
    try {
      const reply = await this.api.repeat('DELETE', releasePath(hold.name, hold.claim), undefined, hold.name, RELEASE_MAX_MS);
      // After a copy that was not answered, "no" means that it was that copy.
      return reply.json?.released === true || reply.isRepeated;
    } catch (error) {
      this.releaseLater(hold);
      throw error;
    }
  }
}

/** The fields of a claim. */
function claimFields({ ttlMs, maxHoldMs, minHoldMs, lockDelayMs, label, floor, ...unknown }, more) {
  const [name] = Object.keys(unknown);
  if (name !== undefined) {
    throw new TenureError('invalid', `"${name}" is no setting of a lock`);
  }
  return { ttl_ms: ttlMs, max_hold_ms: maxHoldMs, min_hold_ms: minHoldMs, lock_delay_ms: lockDelayMs, label, floor, ...more };
}

/** A lock by name. It is not re-entrant: who holds a mutex and asks for it again waits for itself. */
class Lock {
  #tenure;
  #fields;

  constructor(tenure, name, settings, more) {
    this.#tenure = tenure;
    this.name = name;
    this.#fields = claimFields(settings, more);
  }

  /**
   * Takes it, and waits in the order in which claims came: for ever, or for `waitMs` (`timeout` then; what is not answered by then is waited
   * for up to 2 s more). One round trip when it is free. `signal` ends the wait, and withdraws the claim.
   */
  async acquire({ waitMs = Infinity, signal } = {}) {
    return new Lease(this.#tenure, await this.claiming(waitMs, signal).run());
  }

  /** Takes it if it is free and nobody waits: one round trip. Null if others hold it or wait. */
  async tryAcquire() {
    const hold = await this.claiming(0).tryRun();
    return hold === null ? null : new Lease(this.#tenure, hold);
  }

  /** Works under it, and releases it at the end; `lost` if it was lost meanwhile. `work` is given the lease. */
  async run(work, options) {
    const lease = await this.acquire(options);
    let isDone = false;
    try {
      const value = await work(lease);
      lease.check();
      isDone = true;
      return value;
    } finally {
      // What the work throws says more than a release that fails, and goes on in the background.
      await lease.release().catch((error) => {
        if (isDone) {
          throw error;
        }
      });
    }
  }

  claiming(waitMs, signal, more = {}) {
    return new Claiming(this.#tenure, this.name, { ...this.#fields, ...more }, waitMs, signal);
  }
}

/** One acquisition under way. */
class Claiming {
  #tenure;
  #api;
  #name;
  #fields;
  #waitMs;
  #signal;
  #until;
  #id = newId();
  #isSent = false;
  #hasAsked = false;
  #answeredAt = clock.now();
  #backoff = new Backoff();
  /** A value that is fresh answers as well as a grant. */
  found = null;

  constructor(tenure, name, fields, waitMs, signal) {
    this.#tenure = tenure;
    this.#api = tenure.api;
    this.#name = name;
    this.#fields = fields;
    this.#waitMs = waitMs;
    this.#signal = signal;
    this.#until = this.#answeredAt + Math.min(Math.max(0, waitMs), TEN_YEARS_MS);
  }

  /** The hold; null if a value was found. */
  async run() {
    let isDone = false;
    this.#tenure.waiting(1);
    try {
      for (;;) {
        const hold = await this.#turn();
        if (hold !== null) {
          this.#tenure.hold(hold);
        }
        if (hold !== null || this.found !== null) {
          isDone = true;
          return hold;
        }
      }
    } finally {
      this.#tenure.waiting(-1);
      if (!isDone) {
        this.#withdraw();
      }
    }
  }

  /** Null: others hold it. */
  async tryRun() {
    let isDone = false;
    try {
      // Under an id that was used up by a copy of the request, or granted too late, once more.
      for (let attempt = 0; attempt < 3; attempt++) {
        try {
          this.#isSent = true;
          const reply = await this.#api.repeat('PUT', this.#path(), this.#body({ wait: false }), this.#name, this.#tenure.patienceMs);
          const hold = await this.#accepted(reply);
          if (hold !== null) {
            this.#tenure.hold(hold);
            isDone = true;
            return hold;
          }
        } catch (error) {
          if (error instanceof Unanswered) {
            throw error.asUnavailable(this.#name);
          }
          if (error.kind === 'busy') {
            // A copy that is still on its way must not be granted when nobody waits for it.
            isDone = !error.isRepeated;
            return null;
          }
          if (error.kind !== 'finished') {
            throw error;
          }
        }
        this.#rename();
      }
      throw new TenureError('unavailable', 'answers come too late to be of use', { hint: 'is the ttl longer than a round trip?', resource: this.#name });
    } finally {
      if (!isDone) {
        this.#withdraw();
      }
    }
  }

  #path() {
    return `/v1/claims/${this.#id}`;
  }

  #body(more) {
    return { ...this.#fields, name: this.#name, ...more };
  }

  /** Asks once, and waits in it. Null: not yet. */
  async #turn() {
    const now = clock.now();
    const left = this.#until - now;
    if (left <= 0 && this.#hasAsked) {
      await this.#withdrawNow();
      throw new TenureError('timeout', `others held it for ${this.#waitMs} ms`, { resource: this.#name });
    }
    const pollMs = Math.floor(Math.max(0, Math.min(POLL_MS, left)));
    try {
      this.#isSent = true;
      this.#hasAsked = true;
      const body = this.#body({ poll_ms: pollMs });
      const reply = await this.#api.once('PUT', this.#path(), body, pollMs + RELEASE_MAX_MS, { signal: this.#signal });
      this.#answeredAt = clock.now();
      if (reply.status === 202) {
        if (reply.json?.claim !== this.#id) {
          throw notUnderstood();
        }
        if (this.#answeredAt - now >= Math.min(pollMs, 100)) {
          this.#backoff.reset();
        } else {
          // It did not wait, as it was told to: the server ends, or a copy of this request has come after it.
          await this.#pause(Math.min(Math.max(0, this.#until - this.#answeredAt), this.#backoff.next()));
        }
        return null;
      }
      if (this.#fields.unless_fresh && reply.json?.state === 'fresh') {
        this.found = { value: bytes(reply.json, 'value'), isLoaded: false, token: whole(reply.json, 'token') };
        return null;
      }
      const hold = await this.#accepted(reply);
      if (hold === null) {
        this.#rename();
      }
      return hold;
    } catch (error) {
      if (error instanceof Unanswered) {
        const ms = this.#backoff.next(error);
        const after = clock.now() + ms;
        if (after >= this.#until || after - this.#answeredAt >= this.#tenure.patienceMs) {
          throw error.asUnavailable(this.#name);
        }
        await this.#pause(ms);
        return null;
      }
      if (error.kind !== 'finished' && error.kind !== 'lost') {
        throw error;
      }
      // Nothing is held under that id, and nothing will be.
      this.#rename();
      await this.#pause(Math.min(Math.max(0, left), this.#backoff.next()));
      return null;
    }
  }

  #pause(ms) {
    return pause(ms, { signal: this.#signal });
  }

  /** Gives the id up, and takes another. */
  #rename() {
    this.#withdraw();
    this.#id = newId();
    this.#isSent = false;
  }

  /** Ends the claim, wherever it is, if anybody can have heard of it. */
  #withdraw() {
    if (this.#isSent) {
      this.#tenure.keeper.releaseLater(this.#name, this.#id, Math.max(20_000, 2 * (this.#fields.ttl_ms ?? 30_000)));
    }
  }

  /** The same, so that nobody waits behind a claim that was given up; in the background if it is not answered. */
  async #withdrawNow() {
    try {
      await this.#api.once('DELETE', releasePath(this.#name, this.#id), undefined, RELEASE_MAX_MS);
    } catch {
      this.#withdraw();
    }
    this.#isSent = false;
  }

  /** What a grant is worth. Null: it was over before it came. */
  async #accepted({ json, sent }) {
    if (json?.state !== 'granted' || json.claim !== this.#id || json.name !== this.#name) {
      throw notUnderstood();
    }
    const token = whole(json, 'token');
    const slot = isWhole(json.slot) ? json.slot : null;
    const hold = new Hold(this.#name, this.#id, token, slot, false, sent, whole(json, 'expires_in_ms'));
    // A grant that was waited for, or that was long on its way, has less left than it says: a renewal tells how much.
    if (whole(json, 'waited_ms') === 0 && clock.now() - sent <= hold.ttlSeen / 3) {
      return hold;
    }
    try {
      const reply = await this.#api.once('POST', `${this.#path()}/renew`, { name: this.#name }, RELEASE_MAX_MS, { signal: this.#signal });
      if (reply.json?.state !== 'held' || reply.json.claim !== this.#id || reply.json.token !== token) {
        throw notUnderstood();
      }
      const renewed = new Hold(this.#name, this.#id, token, slot, false, reply.sent, whole(reply.json, 'expires_in_ms'));
      return renewed.isHeld() ? renewed : null;
    } catch (error) {
      if (error.kind === 'lost') {
        return null;
      }
      throw error;
    }
  }
}

/** What is held: renewed in the background until it is released or lost. */
class Lease {
  #tenure;
  #hold;
  #abort = null;

  constructor(tenure, hold) {
    this.#tenure = tenure;
    this.#hold = hold;
  }

  get name() {
    return this.#hold.name;
  }

  /** The fencing token: larger than that of every earlier grant of this name. */
  get token() {
    return this.#hold.token;
  }

  /** The id of this acquisition. With the token it makes the headers that resources check. */
  get claim() {
    return this.#hold.claim;
  }

  /** The number of the slot, of a pool; otherwise null. */
  get slot() {
    return this.#hold.slot;
  }

  /** Whether it is lost. False of one that was released. No round trip. */
  get isLost() {
    return this.#hold.loss() !== null;
  }

  /** How long until it is lost, if no renewal is answered until then. No round trip. */
  get expiresInMs() {
    return this.#hold.isHeld() ? Math.max(0, this.#hold.deadline - clock.now()) : 0;
  }

  /** Does nothing while it is held. Throws `lost` once it is lost, and from then on always. No round trip. */
  check() {
    const loss = this.#hold.loss();
    if (loss !== null) {
      throw loss;
    }
    if (!this.#hold.isHeld()) {
      throw new TenureError('invalid', `the lease of "${this.name}" was released`);
    }
  }

  /** Has a callback hear of its loss, once; soon if it is lost already, and never after a release. */
  onLost(callback) {
    this.#hold.onLost(callback);
    return this;
  }

  /** Aborted when the lease is lost: for `fetch` and whatever else takes a signal. */
  get signal() {
    if (this.#abort === null) {
      const abort = new AbortController();
      this.#abort = abort;
      this.#hold.onLost((loss) => abort.abort(loss));
    }
    return this.#abort.signal;
  }

  /**
   * Releases it: one round trip. Whether it was held until now, as the store says. `unavailable` if nobody has answered for 2 s: the release
   * goes on in the background, and nobody may work under it.
   */
  async release() {
    return this.#hold.letGo() ? this.#tenure.release(this.#hold) : false;
  }

  async [Symbol.asyncDispose ?? Symbol.for('Symbol.asyncDispose')]() {
    await this.release();
  }
}

/** A value that one process of a fleet loads for all. Who comes while another loads waits for the new value. */
class SingleFlight {
  #tenure;
  #lock;
  #freshMs;

  constructor(tenure, key, freshMs, settings) {
    this.#tenure = tenure;
    this.#lock = new Lock(tenure, key, settings, {});
    this.#freshMs = freshMs;
  }

  /**
   * The value if it is fresh; otherwise loads it, or waits for who loads it: `{ value, isLoaded, token }`. One round trip for a fresh value, three
   * to load. `load` gives a Buffer or a text of up to 256 KiB; what it throws is thrown on, and another loads.
   */
  async get(load, { signal } = {}) {
    const claiming = this.#lock.claiming(Infinity, signal, { unless_fresh: true });
    const hold = await claiming.run();
    if (hold === null) {
      return claiming.found;
    }
    const lease = new Lease(this.#tenure, hold);
    try {
      const value = Buffer.from(await load(lease));
      lease.check();
      const body = { name: hold.name, value_base64: value.toString('base64'), fresh_ms: this.#freshMs, stale_ms: 0 };
      await this.#tenure.api.repeat('PUT', `/v1/claims/${hold.claim}/value`, body, hold.name, this.#tenure.patienceMs);
      return { value, isLoaded: true, token: hold.token };
    } catch (error) {
      if (error.kind === 'lost') {
        hold.lose('the store has ended it', error);
      }
      throw error;
    } finally {
      // In the background if it is not answered.
      await lease.release().catch(() => {});
    }
  }
}

/** Work in line: in order within each group, with a lease on each item that is handed out. */
class Queue {
  #tenure;
  #orders;

  constructor(tenure, name, { ttlMs, intervalMs, groupIntervalMs, attemptsMax, ...unknown }) {
    const [setting] = Object.keys(unknown);
    if (setting !== undefined) {
      throw new TenureError('invalid', `"${setting}" is no setting of a queue`);
    }
    this.#tenure = tenure;
    this.name = name;
    const interval = intervalMs === undefined ? [groupIntervalMs, 'group'] : [intervalMs, 'queue'];
    this.#orders = { ttl_ms: ttlMs, attempts_max: attemptsMax };
    if (interval[0] !== undefined) {
      [this.#orders.interval_ms, this.#orders.interval_of] = interval;
    }
  }

  get attemptsMax() {
    return this.#orders.attempts_max;
  }

  /**
   * Puts an item in line: a text or a Buffer of up to 256 KiB. One round trip; what is not answered is repeated under the same dedup id, which is
   * the client's own unless one is given. `{ item, isDuplicate }`.
   */
  async push(payload, { group, delayMs, dedup, context } = {}) {
    const item = {
      payload_base64: Buffer.from(payload).toString('base64'),
      group,
      delay_ms: delayMs,
      dedup: dedup ?? newId(),
      context,
    };
    const reply = await this.#tenure.api.repeat('POST', '/v1/queue/push', { queue: this.name, items: [item] }, this.name, this.#tenure.patienceMs);
    const pushed = Array.isArray(reply.json) ? reply.json[0] : null;
    if (!isObject(pushed)) {
      throw notUnderstood().asUnavailable(this.name);
    }
    const problem = problemOf(pushed.problem);
    if (problem !== null) {
      throw problem;
    }
    // Under an id of its own, a copy of this very request was there.
    return { item: pushed.item, isDuplicate: pushed.is_duplicate === true && dedup !== undefined };
  }

  /** Takes an item, and waits for one for `waitMs`. Null if none came. If an answer is lost, its item comes again after its ttl. */
  async take({ waitMs = 0, signal } = {}) {
    const [delivery] = await this.takeSome(1, { waitMs, signal });
    return delivery ?? null;
  }

  /** The same, and what else is ready with it, up to 16 items in all. */
  async takeSome(most, { waitMs = 0, signal } = {}) {
    const api = this.#tenure.api;
    const backoff = new Backoff();
    let answeredAt = clock.now();
    const until = answeredAt + Math.min(Math.max(0, waitMs), TEN_YEARS_MS);
    for (;;) {
      const pollMs = Math.floor(Math.max(0, Math.min(POLL_MS, until - clock.now())));
      try {
        const body = { ...this.#orders, queue: this.name, max: most, poll_ms: pollMs };
        const reply = await api.once('POST', '/v1/queue/take', body, pollMs + ANSWER_MAX_MS, { signal });
        answeredAt = clock.now();
        backoff.reset();
        const taken = reply.status === 204 ? [] : await this.#deliveries(reply);
        if (taken.length > 0 || clock.now() >= until) {
          return taken;
        }
      } catch (error) {
        if (!(error instanceof Unanswered)) {
          throw error;
        }
        const ms = backoff.next(error);
        const after = clock.now() + ms;
        if (after >= until || after - answeredAt >= this.#tenure.patienceMs) {
          throw error.asUnavailable(this.name);
        }
        await pause(ms, { signal });
      }
    }
  }

  async #deliveries(reply) {
    if (!Array.isArray(reply.json)) {
      throw notUnderstood();
    }
    const deliveries = [];
    for (const fields of reply.json) {
      const hold = await this.#held(fields, reply.sent);
      if (hold !== null) {
        deliveries.push(new Delivery(this.#tenure, this, this.#tenure.hold(hold), bytes(fields, 'payload'), fields));
      }
    }
    return deliveries;
  }

  /** The lease of an item. The request may have waited for long before the item came: then a renewal tells how much is left. Null: it comes again. */
  async #held(fields, sent) {
    if (!isObject(fields) || typeof fields.claim !== 'string') {
      return null;
    }
    const of = (from, expiresMs) => new Hold(this.name, fields.claim, whole(fields, 'token'), null, true, from, expiresMs);
    const hold = of(sent, whole(fields, 'expires_in_ms'));
    if (clock.now() - sent <= hold.ttlSeen / 3 && hold.isHeld()) {
      return hold;
    }
    try {
      const body = { queue: this.name };
      const reply = await this.#tenure.api.once('POST', `/v1/deliveries/${fields.claim}/renew`, body, RELEASE_MAX_MS);
      const renewed = of(reply.sent, whole(reply.json, 'expires_in_ms'));
      return renewed.isHeld() ? renewed : null;
    } catch {
      return null;
    }
  }

  /**
   * Has a handler called with each delivery, so many at a time, until `stop()` of what it gives, which ends when the last one has. An item is acknowledged
   * when the handler is done, and comes again, later each time, if it throws. `onError` hears of what was thrown.
   */
  listen(parallel, handler, { onError = () => {} } = {}) {
    const abort = new AbortController();
    const work = async () => {
      const backoff = new Backoff();
      while (!abort.signal.aborted) {
        try {
          const delivery = await this.take({ waitMs: POLL_MS, signal: abort.signal });
          backoff.reset();
          if (delivery !== null) {
            await handle(delivery, handler, onError);
          }
        } catch (error) {
          if (!abort.signal.aborted) {
            onError(error, null);
            await pause(backoff.next(), { signal: abort.signal }).catch(() => {});
          }
        }
      }
    };
    const workers = Array.from({ length: parallel }, work);
    return {
      stop: async () => {
        abort.abort();
        await Promise.all(workers);
      },
    };
  }
}

async function handle(delivery, handler, onError) {
  try {
    await handler(delivery);
    if (!delivery.isOver) {
      await delivery.ack();
    }
  } catch (error) {
    onError(error, delivery);
    if (!delivery.isOver) {
      await delivery.retry(String(error?.message ?? error)).catch((failure) => onError(failure, delivery));
    }
  }
}

/** An item that was handed out, and the lease on it. It may come twice: work on it must bear that, or be fenced by `token`. */
class Delivery {
  #tenure;
  #queue;
  #hold;

  constructor(tenure, queue, hold, payload, fields) {
    this.#tenure = tenure;
    this.#queue = queue;
    this.#hold = hold;
    this.payload = payload;
    this.item = fields.item;
    this.group = fields.group ?? null;
    this.context = fields.context ?? null;
    /** How often it has been handed out, this time included. */
    this.attempt = fields.attempt;
    this.token = hold.token;
    this.claim = hold.claim;
    this.retryInMs = isWhole(fields.retry_in_ms) ? fields.retry_in_ms : 1_000;
  }

  get text() {
    return this.payload.toString('utf8');
  }

  /** Whether it was settled, or is lost. No round trip. */
  get isOver() {
    return !this.#hold.isHeld();
  }

  /** Does nothing while it is held; throws `lost` once it is lost. No round trip. */
  check() {
    const loss = this.#hold.loss();
    if (loss !== null) {
      throw loss;
    }
  }

  onLost(callback) {
    this.#hold.onLost(callback);
    return this;
  }

  /** It is done; the next one of its group can be handed out. `lost` if it came too late, `unavailable` if nobody knows. */
  ack() {
    return this.#settle('ack', {});
  }

  /** Has it handed out again, later after each attempt, or after that. Its group waits meanwhile. */
  retry(reason, afterMs = this.retryInMs) {
    return this.#settle('retry', { reason, after_ms: afterMs, attempts_max: this.#queue.attemptsMax });
  }

  /** Makes it a dead letter. */
  fail(reason) {
    return this.#settle('fail', { reason });
  }

  /** Has it handed out again at once, as if this had not happened. */
  putBack() {
    return this.#settle('return', {});
  }

  async #settle(act, body) {
    if (!this.#hold.letGo()) {
      this.check();
      throw new TenureError('invalid', `the item ${this.item} was settled before`);
    }
    this.#tenure.keeper.remove(this.#hold);
    const path = `/v1/deliveries/${this.claim}/${act}`;
    try {
      await this.#tenure.api.repeat('POST', path, { ...body, queue: this.#queue.name }, this.#queue.name, this.#tenure.patienceMs);
    } catch (error) {
      if (error.kind === 'lost' && error.isRepeated) {
        const text = `nobody knows whether the item ${this.item} is settled: the first answer was lost, and then it was over`;
        throw new TenureError('unavailable', text, { hint: 'it may be handed out again', resource: this.#queue.name, cause: error });
      }
      throw error;
    }
  }
}
