// Perfetto's trace processor behind the HTTP of its own Python package:  node trace_processor.js FOLDER_OF_PERFETTOS_UI
//
// The UI runs the engine as WebAssembly in a web worker (engine_bundle.js), which takes and gives the length-delimited
// protobuf messages of perfetto/protos/trace_processor.proto, TraceProcessorRpcStream { repeated TraceProcessorRpc
// msg = 1 }.  Here node is that worker.  Prints the port of localhost it serves; ends when its stdin ends.
"use strict";
const fs = require("node:fs");
const http = require("node:http");
const path = require("node:path");

// of TraceProcessorRpc: the method, and the fields that hold its argument and its result
const ENDPOINTS = {
  "/parse": { method: 1, argument: 101, result: 201 },
  "/notify_eof": { method: 2, result: 212 },
  "/query": { method: 3, argument: 103, result: 203 },
};
const STREAM_MESSAGE = 1, METHOD = 2, FATAL_ERROR = 5, INVALID_REQUEST = 4;
const VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5; // wire types

// --- protobuf ---
function varint(value) {
  const bytes = [];
  for (; value > 0x7f; value = Math.floor(value / 128)) bytes.push((value % 128) | 0x80);
  return Buffer.from([...bytes, value]);
}

const integer = (field, value) => Buffer.concat([varint(field * 8 + VARINT), varint(value)]);
const bytes = (field, value) => Buffer.concat([varint(field * 8 + BYTES), varint(value.length), value]);

// [field, value] of each field of a message; integers up to 2^53
function* fields(message) {
  let at = 0;
  const number = () => {
    for (let value = 0, scale = 1; ; scale *= 128) {
      const byte = message[at++];
      value += (byte & 0x7f) * scale;
      if (byte < 0x80) return value;
    }
  };
  while (at < message.length) {
    const key = number(), wire = key % 8;
    if (wire === VARINT) {
      yield [Math.floor(key / 8), number()];
      continue;
    }
    const size = { [FIXED64]: 8, [BYTES]: 0, [FIXED32]: 4 }[wire] || number();
    yield [Math.floor(key / 8), message.subarray(at, (at += size))];
  }
}

// --- the engine ---
// A function from the bytes of a request stream to those of its answer.
async function engine(folder) {
  class XMLHttpRequest { // how a worker loads the engine's WebAssembly
    open(method, name) { this.response = fs.readFileSync(path.join(folder, name)); }
    send() {}
  }
  const bundle = fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf8");
  const self = { location: { href: "" } };
  new Function("self", "WorkerGlobalScope", "XMLHttpRequest", "process", bundle)(self, Object, XMLHttpRequest);
  const port = {};
  self.onmessage({ data: port });
  await new Promise(setImmediate); // the engine starts itself in the queued callbacks
  return (request) => {
    const answers = [];
    port.postMessage = (part) => answers.push(part);
    port.onmessage({ data: request });
    return Buffer.concat(answers);
  };
}

// The bytes of an endpoint's result.  An answer in several messages is one message: protobuf merges what is joined.
function call(rpc, { method, argument, result }, body) {
  const content = argument ? bytes(argument, body) : Buffer.alloc(0);
  const request = bytes(STREAM_MESSAGE, Buffer.concat([integer(METHOD, method), content]));
  const parts = [];
  for (const [, message] of fields(rpc(request))) {
    for (const [field, value] of fields(message)) {
      if (field === FATAL_ERROR || field === INVALID_REQUEST) throw new Error(`trace processor: ${value}`);
      if (field === result) parts.push(value);
    }
  }
  return Buffer.concat(parts);
}

async function main() {
  const rpc = await engine(process.argv[2]);
  const server = http.createServer(async (request, response) => {
    const endpoint = ENDPOINTS[request.url];
    if (!endpoint) return response.writeHead(404).end();
    const parts = [];
    for await (const part of request) parts.push(part);
    let body = Buffer.concat(parts);
    // the Python package sends a query's text as it is in QueryArgs, and a trace's bytes as they are
    response.end(call(rpc, endpoint, body));
  });
  server.listen(0, "127.0.0.1", () => console.log(server.address().port));
  process.stdin.on("end", () => process.exit()).resume();
}

main();
