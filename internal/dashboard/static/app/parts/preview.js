// Shows a service's result safely: as text, or by a blob: URL of a type that cannot carry scripts. HTML and SVG are
// shown as source.

import { html, useState, useEffect, useMemo } from "../html.js";
import { bytes, inert, num } from "../format.js";
import { BASE, api } from "../api.js";
import { Button, toast } from "../ui.js";
import { JsonView, TextView } from "./jsonview.js";
import { write } from "./jsontext.js";

// Types that browsers only draw. The service's content type selects one of them, and is never passed on.
const images = new Map([
  ["image/png", [0x89, 0x50, 0x4e, 0x47]],
  ["image/jpeg", [0xff, 0xd8, 0xff]],
  ["image/gif", [0x47, 0x49, 0x46, 0x38]],
  ["image/webp", [0x52, 0x49, 0x46, 0x46]],
]);
const MOST = 16 << 20; // bytes of a result that is shown
const pdfType = "application/pdf";
const pdfMagic = [0x25, 0x50, 0x44, 0x46, 0x2d];

/**
 * Preview shows a result, with a download. node is a JSON result, base64 the bytes of others. href and size are of
 * the exact bytes; without them they are made from what is shown. With neither, a button fetches them.
 */
export function Preview({ node, base64, contentType, name, href, size }) {
  const inline = useMemo(() => (base64 === undefined ? null : decode(base64)), [base64]);
  const [read, setRead] = useState(null);
  const data = inline ?? read;
  const kind = node ? "json" : data ? kindOf(data, contentType ?? "application/json") : "large";
  const show = async () => {
    try {
      setRead(new Uint8Array(await (await api.raw(href.slice(BASE.length))).arrayBuffer()));
    } catch (err) {
      toast(err, { tone: "bad" });
    }
  };
  return html`<div class="preview" data-test=${`preview-${kind}`}>
    ${kind !== "large" ? html`<${Shown} kind=${kind} node=${node} data=${data} contentType=${contentType} />`
      : size <= MOST && html`<${Button} small onClick=${show} test="show-result">Show<//>`}
    <div class="preview-foot">
      <span class="muted">${inert(contentType || (node || kind === "large" ? "application/json" : "no type"))}</span>
      <${Download} data=${data} node=${node} href=${href} size=${size} name=${fileName(name, kind, contentType)} />
    </div>
  </div>`;
}

function Shown({ kind, node, data, contentType }) {
  switch (kind) {
    case "json":
      return html`<${JsonView} node=${node} text=${node ? undefined : new TextDecoder().decode(data)} label="result" />`;
    case "text":
      return html`<${TextView} text=${new TextDecoder().decode(data)} label="result" />`;
    case "image":
      return html`<${Drawn} data=${data} type=${media(contentType)} />`;
    case "pdf":
      return html`<${Pdf} data=${data} />`;
    default:
      return html`<${Hex} data=${data} />`;
  }
}

/** media is a content type without parameters, in lower case. */
export const media = (type) => (type ?? "").split(";")[0].trim().toLowerCase();

function kindOf(data, contentType) {
  const type = media(contentType);
  if (images.has(type) && begins(data, images.get(type))) return "image";
  if (type === pdfType && begins(data, pdfMagic)) return "pdf";
  if (!isText(data, type)) return "bytes";
  return /[/+]json$/.test(type) ? "json" : "text";
}

const begins = (data, magic) => magic.every((byte, i) => data[i] === byte);

// A NUL means bytes, unless the service says that this is text.
function isText(data, type) {
  if (data.includes(0) && !type.startsWith("text/")) return false;
  try {
    new TextDecoder("utf-8", { fatal: true }).decode(data);
    return true;
  } catch {
    return false;
  }
}

function decode(base64) {
  const binary = atob(base64);
  const data = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) data[i] = binary.charCodeAt(i);
  return data;
}

// useBlob is a URL for bytes while the component is mounted.
function useBlob(data, type) {
  const [url, setUrl] = useState(null);
  useEffect(() => {
    const made = URL.createObjectURL(new Blob([data], { type }));
    setUrl(made);
    return () => URL.revokeObjectURL(made);
  }, [data, type]);
  return url;
}

function Drawn({ data, type }) {
  const url = useBlob(data, type);
  return url && html`<img class="preview-image" src=${url} alt="The result, an image" />`;
}

// Without a PDF viewer, as on phones, the file can be downloaded.
function Pdf({ data }) {
  const url = useBlob(data, pdfType);
  if (navigator.pdfViewerEnabled === false) {
    return html`<p class="muted">This browser shows no PDFs in a page; download the file to read it.</p>`;
  }
  return url && html`<iframe class="preview-pdf" src=${`${url}#toolbar=0&navpanes=0`} title="The result, a PDF"></iframe>`;
}

const hexBytes = 512;

function Hex({ data }) {
  const rows = [];
  for (let at = 0; at < Math.min(data.length, hexBytes); at += 16) rows.push(hexRow(data.subarray(at, at + 16), at));
  return html`<pre class="hex" tabindex="0" aria-label="the first bytes of the result">${rows.join("\n")}${data.length >
    hexBytes && `\n… ${num(data.length - hexBytes)} more bytes`}</pre>`;
}

function hexRow(row, at) {
  const digits = [...row].map((b) => b.toString(16).padStart(2, "0"));
  const letters = [...row].map((b) => (b >= 32 && b < 127 ? String.fromCharCode(b) : "·"));
  return `${at.toString(16).padStart(6, "0")}  ${digits.join(" ").padEnd(48)}  ${letters.join("")}`;
}

// The type of the file is one that no browser opens automatically.
function Download({ data, node, name, href, size }) {
  const made = useMemo(() => (href ? "" : (data ?? write(node))), [href, data, node]);
  const blob = useBlob(made, "application/octet-stream");
  const url = href ?? blob;
  return url && html`<a class="btn small" href=${url} download=${name} data-test="download">
    Download <span class="muted">${bytes(size ?? made.length)}</span>
  </a>`;
}

const endings = {
  "application/pdf": "pdf",
  "image/png": "png",
  "image/jpeg": "jpg",
  "image/gif": "gif",
  "image/webp": "webp",
  "text/csv": "csv",
};

// fileName replaces all characters of a key that a file system or a shell could interpret.
function fileName(name, kind, contentType) {
  const safe = name.replace(/[^\p{L}\p{N}_-]+/gu, "_").replace(/^[_-]+|[_-]+$/g, "").slice(0, 80) || "result";
  const ending = endings[media(contentType)] ?? (kind === "json" ? "json" : kind === "text" ? "txt" : "bin");
  return `${safe}.${ending}`;
}
