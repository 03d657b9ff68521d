// The file of items: dropped or chosen, with a preview as the server reads it.
import { html, useEffect, useRef, useState } from "../html.js";
import { api, query, ApiError } from "../api.js";
import { Button, ErrorBox, Field, Icon, Select, Skeleton, Text } from "../ui.js";
import { bytes, num, plural } from "../format.js";

const most = 256 << 10; // bytes sent for the preview

export function DropZone({ file, onFile, error }) {
  const [over, setOver] = useState(false);
  const input = useRef(null);
  const drop = (e) => {
    e.preventDefault();
    setOver(false);
    if (e.dataTransfer.files[0]) onFile(e.dataTransfer.files[0]);
  };
  const drag = (e) => {
    e.preventDefault();
    setOver(true);
  };
  return html`<div class=${"start-drop" + (over ? " over" : "") + (error ? " wrong" : "") + (file ? " full" : "")} onDrop=${drop}
      onDragOver=${drag} onDragLeave=${() => setOver(false)} data-test="drop">
    <${Icon} name=${file ? "file" : "upload"} size=${20}/>
    ${file ? html`<div class="grow"><strong><${Text} max=${80}>${file.name}<//></strong>
        <span class="under">${bytes(file.size)}</span></div>`
      : html`<div class="grow"><strong>Drop a file of items here</strong>
        <span class="under">CSV, NDJSON or Parquet; plain, gzip or zstd</span></div>`}
    <input ref=${input} type="file" class="sr" tabindex="-1" aria-label="File of items" data-test="file"
      accept=".csv,.tsv,.ndjson,.jsonl,.json,.parquet,.gz,.zst" onChange=${(e) => {
        if (e.currentTarget.files[0]) onFile(e.currentTarget.files[0]);
        e.currentTarget.value = "";
      }}/>
    <${Button} onClick=${() => input.current.click()} test="choose">${file ? "Another file" : "Choose a file"}<//>
  </div>`;
}

// usePreview shows how the server reads the beginning of a file: {data, error, loading}.
export function usePreview(file, key) {
  const [state, setState] = useState({});
  useEffect(() => {
    if (!file) {
      setState({});
      return undefined;
    }
    const control = new AbortController();
    const truncated = file.size > most;
    setState((s) => ({ loading: true, data: s.file === file ? s.data : undefined, file }));
    api.post("/items/preview" + query({ key, truncated: truncated ? "true" : "" }), file.slice(0, most),
      { key: "", type: "application/octet-stream", signal: control.signal },
    ).then(
      (data) => setState({ data, file }),
      (error) => {
        if (error.name === "AbortError") return;
        setState((s) => ({ error: error instanceof ApiError ? error : new ApiError(0, { detail: String(error) }), file,
          data: s.file === file ? s.data : undefined }));
      });
    return () => control.abort();
  }, [file, key]);
  return state;
}

export function Preview({ preview, keyColumn, onKey, error }) {
  const { data, loading, error: unread } = preview;
  const large = unread && /only be previewed whole/.test(unread.detail);
  return html`<div class="column">
    ${large ? html`<p class="notice"><${Icon} name="info"/><span>A Parquet file of this size has no preview. The dry run reads
      all of it, and shows its first items.</span></p>` : html`<${ErrorBox} error=${error || unread}
      title="The file cannot be read like this" test="items-error"/>`}
    ${loading && !data && html`<${Skeleton} lines=${3}/>`}
    ${data && html`<div class="row between">
      <${Field} label="Key column" hint="names each item; must be unique">
        <${Select} value=${keyColumn || data.key_column} onChange=${onKey} options=${data.columns} test="key-column"/><//>
      <p class="muted">${data.format.toUpperCase()} · ${plural(data.columns.length, "column")}</p></div>
      ${(data.warnings || []).map((w) => html`<p class="notice warn"><${Icon} name="warn"/><bdi>${w}</bdi></p>`)}
      <${Rows} rows=${data.rows} columns=${data.columns} keyColumn=${data.key_column}/>`}
  </div>`;
}

const shownRows = 8;

export function Rows({ rows, columns, keyColumn }) {
  const names = columns || [...new Set(rows.flatMap((r) => Object.keys(isRecord(r.payload) ? r.payload : {})))];
  if (rows.length === 0) return html`<p class="muted">There is no item in it.</p>`;
  return html`<div class="table-box start-preview" tabindex="0" role="region" aria-label="First items" data-test="preview"><table>
    <thead><tr><th scope="col" class="right">Line</th>${names.map((c) => html`<th scope="col" key=${c}
      class=${c === keyColumn ? "is-key" : ""}><${Text} max=${40}>${c}<//>${c === keyColumn && html`<${Icon} name="key" size=${12}/>
        <span class="sr">(key)</span>`}</th>`)}</tr></thead>
    <tbody>${rows.slice(0, shownRows).map((r) => html`<tr key=${r.line}><td class="right muted">${num(r.line)}</td>${
      names.map((c) => html`<td key=${c} class=${c === keyColumn ? "is-key" : ""}><${Text} max=${60}>${
        isRecord(r.payload) ? r.payload[c] : c === keyColumn ? r.key : r.payload}<//></td>`)}</tr>`)}</tbody>
  </table></div>`;
}

const isRecord = (v) => v !== null && typeof v === "object" && !Array.isArray(v) && !JSON.isRawJSON?.(v);
