// The login: by token, or at the OIDC provider. The token is sent to the server; what remains is a cookie that
// scripts cannot read.
import { html, rooted, useEffect, useState } from "../html.js";
import { Button, Card, ErrorBox, Field, Icon } from "../ui.js";
import { api } from "../api.js";
import { session, refresh, say } from "../session.js";
import { go } from "../router.js";
import { Logo } from "../shell.js";

export default function Login({ query }) {
  const [token, setToken] = useState("");
  const [error, setError] = useState(null);
  const [shown, setShown] = useState(false);
  const { authenticated, oidc, auth, loaded } = session.value;
  // Only a path of this dashboard, to prevent open redirects.
  const next = /^\/(?![/\\])/.test(query.next || "") ? query.next : "/runs";
  useEffect(() => { document.title = "Log in · Tranche"; }, []);
  useEffect(() => { if (loaded && authenticated) go(next, { replace: true }); }, [loaded, authenticated]);
  const login = async (e) => {
    e.preventDefault();
    if (!token.trim()) return;
    setError(null);
    try {
      say(await api.post("/session", { token: token.trim() }, { key: "" }));
      setToken("");
      await refresh();
    } catch (err) {
      setError(err);
    }
  };
  const says = error && (error.status === 401 ? "This token is not known, or no longer good."
    : error.status === 429 ? `Too many attempts. Try again in ${error.retryAfter || 60} seconds.` : "");
  return html`<div class="login" data-test="login-page"><${Card}>
    <div class="login-head"><${Logo} size=${40}/><h1>Tranche</h1></div>
    ${oidc && html`<a class="btn primary login-wide" href=${"/auth/oidc/login?next=" + encodeURIComponent(rooted(next))} data-test="oidc">Log in with your company</a>
      <div class="login-or"><span>or with a token</span></div>`}
    <form onSubmit=${login} class="column">
      <${Field} label="Token" error=${says} hint=${html`It begins with <code>tr_</code>. An admin makes one with <code>tranche token create</code>.`}>
        <input type=${shown ? "text" : "password"} class="code" name="token" value=${token} autocomplete="off" autofocus spellcheck=${false} data-test="token"
          onInput=${(e) => { setToken(e.currentTarget.value); setError(null); }}/><//>
      ${error && !says && html`<${ErrorBox} error=${error}/>`}
      <div class="row between"><label class="check"><input type="checkbox" checked=${shown} onChange=${(e) => setShown(e.currentTarget.checked)}/>
        <span>Show it</span></label>
        <${Button} type="submit" kind=${oidc ? "" : "primary"} icon="key" disabled=${!token.trim()} test="login">Log in<//></div>
    </form>
    ${auth !== "on" && loaded && html`<p class="notice"><${Icon} name="info"/>This server asks no one to log in.</p>`}
  <//></div>`;
}
