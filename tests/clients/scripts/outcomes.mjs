// What outcomes.py is for scripts of Node.js: one line of JSON a check, after one with the version.

import { readFileSync } from "node:fs";

export const URL = process.argv[2]; // of the server, without /v1
const PATIENCE_MS = 20_000;
const checks = [];

export function check(feature, name, run) {
  checks.push({ feature, name, run });
}

export function notOffered(feature, why) {
  checks.push({ feature, name: "refuse", why });
}

export async function report(packageName) {
  const about = new globalThis.URL(`./node_modules/${packageName}/package.json`, import.meta.url);
  print({ version: JSON.parse(readFileSync(about)).version });
  for (const { feature, name, run, why } of checks) {
    if (!run) {
      print({ feature, check: name, outcome: "not offered", why });
      continue;
    }
    try {
      await run();
      print({ feature, check: name, outcome: "ok", why: "" });
    } catch (error) {
      print({ feature, check: name, outcome: "failed", why: String(error.stack ?? error) });
    }
  }
}

// What `begin` begins, and leaves, the server gives up rather than finish.
export async function aborted(begin) {
  const before = await abortedRequests();
  await begin();
  const end = Date.now() + PATIENCE_MS;
  while ((await abortedRequests()) === before) {
    if (Date.now() > end) throw new Error("the server went on with what its client had left");
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

async function abortedRequests() {
  const page = await (await fetch(`${URL}/metrics`)).text();
  return page
    .split("\n")
    .filter((line) => line.startsWith("tandem:request_success_total") && line.includes('"abort"'))
    .reduce((sum, line) => sum + Number(line.split(" ").at(-1)), 0);
}

function print(line) {
  console.log(JSON.stringify(line));
}
