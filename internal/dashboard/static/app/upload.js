// Uploads with progress, which fetch does not report.
import { BASE, ApiError, exactly, scope, toLogin } from "./api.js";

const again = [500, 2000, 5000]; // ms; the delays of retries after a broken connection

// upload posts a file. onProgress gets the sent share, 0 to 1, and "again" while it waits for a retry. The path must
// make repetitions harmless (an idempotency key, or a dry run). control is an AbortSignal.
export async function upload(path, file, { type, onProgress, control } = {}) {
  for (let i = 0; ; i++) {
    try {
      return await once(path, file, type, onProgress, control);
    } catch (err) {
      if (!(err instanceof ApiError) || err.status !== 0 || i >= again.length) throw err;
      onProgress?.(0, "again");
      await rest(again[i], control);
    }
  }
}

function rest(ms, control) {
  return new Promise((done, fail) => {
    const stop = () => {
      clearTimeout(timer);
      fail(new DOMException("cancelled", "AbortError"));
    };
    const timer = setTimeout(() => {
      control?.removeEventListener("abort", stop);
      done();
    }, ms);
    control?.addEventListener("abort", stop, { once: true });
  });
}

function once(path, file, type, onProgress, control) {
  return new Promise((done, fail) => {
    const request = new XMLHttpRequest();
    const abort = () => request.abort();
    request.open("POST", BASE + path);
    request.setRequestHeader("Content-Type", type || "application/octet-stream");
    for (const [name, value] of Object.entries(scope("POST", path))) request.setRequestHeader(name, value);
    request.upload.onprogress = (e) => { if (e.lengthComputable) onProgress?.(e.loaded / Math.max(1, e.total)); };
    request.onload = () => {
      let body = {};
      try {
        body = exactly(request.responseText);
      } catch { /* not an answer of the API: use the status */ }
      if (request.status >= 200 && request.status < 300) return done({ status: request.status, body });
      if (request.status === 401) toLogin(path);
      return fail(new ApiError(request.status, { title: request.statusText, ...body },
        Number(request.getResponseHeader("Retry-After")) || 0));
    };
    request.onerror = () => fail(new ApiError(0, {
      title: "Connection lost", detail: "The connection broke before the server had answered.",
    }));
    request.onabort = () => fail(new DOMException("cancelled", "AbortError"));
    request.onloadend = () => control?.removeEventListener("abort", abort);
    control?.addEventListener("abort", abort, { once: true });
    if (control?.aborted) return fail(new DOMException("cancelled", "AbortError"));
    request.send(file);
    return undefined;
  });
}
