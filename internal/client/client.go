// Package client speaks the HTTP API of tranche serve: what the command line needs, and no more.
//
// Answers are the documents of package api. Errors to tell apart are [ProblemError], an answer that says no,
// [UnreachableError], nobody there, and [SilentError], somebody there who does not answer. Uploads and exports stream;
// an export that broke off is an error of its reader.
//
// It keeps no state and retries nothing. A [Client] is safe for concurrent use.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/workqueue"
)

// DefaultURL is where tranche serve listens unless told otherwise.
const DefaultURL = "http://" + api.DefaultListen

const (
	dialTimeout = 5 * time.Second
	maxAnswer   = 64 << 20
)

// Client talks to one server.
type Client struct {
	base    *url.URL
	actor   string
	timeout time.Duration // 0: each operation's own
	http    *http.Client
}

// New returns a client of the server at base, like DefaultURL. The actor is named in the audit log. The timeout is how
// long an answer may take to begin, and to end if it is one document; 0 is what the operations take at the most.
func New(base, actor string, timeout time.Duration) (*Client, error) {
	if timeout < 0 {
		return nil, fmt.Errorf("the timeout is %s; it must not be negative", timeout)
	}
	parsed, err := url.Parse(strings.TrimSuffix(base, "/"))
	if err != nil || parsed.Host == "" || parsed.Scheme != "http" && parsed.Scheme != "https" {
		return nil, fmt.Errorf("%q is not the URL of a server, like %s", base, DefaultURL)
	}
	transport := &http.Transport{
		Proxy:       http.ProxyFromEnvironment,
		DialContext: (&net.Dialer{Timeout: dialTimeout}).DialContext,
	}
	return &Client{base: parsed, actor: actor, timeout: timeout, http: &http.Client{Transport: transport}}, nil
}

// ProblemError is an answer that says no.
type ProblemError struct {
	Status int    `json:"status"`
	Title  string `json:"title"`
	Detail string `json:"detail"`
	Errors []struct {
		Message  string `json:"message"`
		Location string `json:"location"`
		Value    any    `json:"value"`
	} `json:"errors"`
}

func (p *ProblemError) Error() string {
	text := p.Detail
	if text == "" {
		text = fmt.Sprintf("the server answered %d %s", p.Status, p.Title)
	}
	for i, e := range p.Errors {
		if p.Status != http.StatusUnprocessableEntity || p.Detail != "validation failed" || i == 5 {
			break
		}
		text += fmt.Sprintf("; %s: %s", e.Location, e.Message)
	}
	return text
}

// UnreachableError is returned when nobody answers.
type UnreachableError struct {
	URL string
	Err error
}

func (e *UnreachableError) Error() string {
	return fmt.Sprintf("no tranche answers at %s; start one with: tranche serve", e.URL)
}

func (e *UnreachableError) Unwrap() error { return e.Err }

// Start sends the items and starts a run of them.
func (c *Client) Start(ctx context.Context, settings api.RunSettings, items io.Reader) (api.Started, error) {
	var head bytes.Buffer
	form := multipart.NewWriter(&head)
	part, err := form.CreateFormField(api.PartRun)
	if err == nil {
		err = json.NewEncoder(part).Encode(settings)
	}
	if err == nil {
		_, err = form.CreateFormFile(api.PartItems, "items")
	}
	if err != nil {
		return api.Started{}, fmt.Errorf("write the settings of the run: %w", err)
	}
	tail := strings.NewReader("\r\n--" + form.Boundary() + "--\r\n")
	var out api.Started
	err = c.callWithin(ctx, uploadWait, http.MethodPost, "/runs", form.FormDataContentType(),
		io.MultiReader(&head, items, tail), &out)
	return out, err
}

// Runs lists the newest runs.
func (c *Client) Runs(ctx context.Context, limit int) (api.RunList, error) {
	var out api.RunList
	err := c.call(ctx, http.MethodGet, fmt.Sprintf("/runs?limit=%d", limit), "", nil, &out)
	return out, err
}

// Run returns one run.
func (c *Client) Run(ctx context.Context, ref string) (api.RunDocument, error) {
	var out api.RunDocument
	err := c.call(ctx, http.MethodGet, runPath(ref, ""), "", nil, &out)
	return out, err
}

// Errors returns the groups of failed items.
func (c *Client) Errors(ctx context.Context, ref string) (api.ErrorGroups, error) {
	var out api.ErrorGroups
	err := c.call(ctx, http.MethodGet, runPath(ref, "/errors"), "", nil, &out)
	return out, err
}

// FailedItems streams each failed item as a line of JSON. The caller closes the stream.
func (c *Client) FailedItems(ctx context.Context, ref string) (io.ReadCloser, error) {
	return c.stream(ctx, runPath(ref, "/errors?all=true"))
}

// Export streams the items in the format ndjson or csv. The caller closes the stream.
func (c *Client) Export(ctx context.Context, ref, format string, states []string) (io.ReadCloser, error) {
	query := url.Values{"format": {format}, "state": states}
	return c.stream(ctx, runPath(ref, "/export?"+query.Encode()))
}

// Item returns the items of one key.
func (c *Client) Item(ctx context.Context, ref, key string) (api.KeyItems, error) {
	var out api.KeyItems
	err := c.call(ctx, http.MethodGet, runPath(ref, "/items/"+url.PathEscape(key)), "", nil, &out)
	return out, err
}

// Rerun sets items going again.
func (c *Client) Rerun(ctx context.Context, ref string, settings api.RerunSettings) (api.Rerun, error) {
	var out api.Rerun
	err := c.post(ctx, runPath(ref, "/rerun"), settings, &out)
	return out, err
}

// Cancel stops a run.
func (c *Client) Cancel(ctx context.Context, ref string) (api.Cancelled, error) {
	var out api.Cancelled
	err := c.call(ctx, http.MethodPost, runPath(ref, "/cancel"), "", nil, &out)
	return out, err
}

// DeadLetters lists dead letters, newest first. Empty texts mean every endpoint, every state and the first page.
func (c *Client) DeadLetters(
	ctx context.Context, endpoint, state, after string, limit int,
) (workqueue.DeadLetterPage, error) {
	query := url.Values{"limit": {strconv.Itoa(limit)}}
	setUnlessEmpty(query, "endpoint", endpoint)
	setUnlessEmpty(query, "state", state)
	setUnlessEmpty(query, "after", after)
	var out workqueue.DeadLetterPage
	err := c.call(ctx, http.MethodGet, "/dead-letters?"+query.Encode(), "", nil, &out)
	return out, err
}

// DeadLetter returns one dead letter, with all of its body or only its beginning.
func (c *Client) DeadLetter(ctx context.Context, ref string, full bool) (api.DeadLetterDocument, error) {
	var out api.DeadLetterDocument
	err := c.call(ctx, http.MethodGet, "/dead-letters/"+url.PathEscape(ref)+"?full="+strconv.FormatBool(full), "", nil,
		&out)
	return out, err
}

// Requeue has dead letters sent again.
func (c *Client) Requeue(ctx context.Context, settings api.RequeueSettings) (workqueue.Requeue, error) {
	var out workqueue.Requeue
	err := c.post(ctx, "/dead-letters/requeue", settings, &out)
	return out, err
}

// Drop gives dead letters up.
func (c *Client) Drop(ctx context.Context, sel api.LetterSelection) (api.Dropped, error) {
	var out api.Dropped
	err := c.post(ctx, "/dead-letters/drop", sel, &out)
	return out, err
}

// Quarantine lists messages that could not be taken, newest first. Zero values mean every run and the first page.
func (c *Client) Quarantine(ctx context.Context, run string, after int64, limit int) (workqueue.QuarantinePage, error) {
	query := url.Values{"limit": {strconv.Itoa(limit)}, "after": {strconv.FormatInt(after, 10)}}
	setUnlessEmpty(query, "run", run)
	var out workqueue.QuarantinePage
	err := c.call(ctx, http.MethodGet, "/quarantine?"+query.Encode(), "", nil, &out)
	return out, err
}

// Quarantined returns one message that could not be taken.
func (c *Client) Quarantined(ctx context.Context, id int64) (api.QuarantinedDocument, error) {
	var out api.QuarantinedDocument
	err := c.call(ctx, http.MethodGet, "/quarantine/"+strconv.FormatInt(id, 10), "", nil, &out)
	return out, err
}

func setUnlessEmpty(query url.Values, name, value string) {
	if value != "" {
		query.Set(name, value)
	}
}

// Endpoint says who listens on one endpoint, and the work there is.
func (c *Client) Endpoint(ctx context.Context, name string) (api.Endpoint, error) {
	var out api.Endpoint
	err := c.call(ctx, http.MethodGet, "/endpoints/"+url.PathEscape(name), "", nil, &out)
	return out, err
}

// SetEndpoint changes an endpoint's settings while its services run.
func (c *Client) SetEndpoint(
	ctx context.Context, name string, set api.EndpointSettings,
) (workqueue.EndpointSetting, error) {
	var out workqueue.EndpointSetting
	err := c.post(ctx, "/endpoints/"+url.PathEscape(name)+"/settings", set, &out)
	return out, err
}

// Endpoints says who listens, and the work there is.
func (c *Client) Endpoints(ctx context.Context) (api.EndpointList, error) {
	var out api.EndpointList
	err := c.call(ctx, http.MethodGet, "/endpoints", "", nil, &out)
	return out, err
}

// Doctor has the server check the invariants.
func (c *Client) Doctor(ctx context.Context) (workqueue.Report, error) {
	var out workqueue.Report
	err := c.callWithin(ctx, doctorWait, http.MethodGet, "/doctor", "", nil, &out)
	return out, err
}

// Info says what the server is.
func (c *Client) Info(ctx context.Context) (api.Info, error) {
	var out api.Info
	err := c.call(ctx, http.MethodGet, "/info", "", nil, &out)
	return out, err
}

func runPath(ref, rest string) string { return "/runs/" + url.PathEscape(ref) + rest }

// post sends one document and reads another.
func (c *Client) post(ctx context.Context, path string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return fmt.Errorf("write what to ask for: %w", err)
	}
	return c.call(ctx, http.MethodPost, path, "application/json", bytes.NewReader(body), out)
}

// call asks for one document.
func (c *Client) call(ctx context.Context, method, path, kind string, body io.Reader, out any) error {
	return c.callWithin(ctx, usualWait(method), method, path, kind, body, out)
}

func (c *Client) callWithin(
	ctx context.Context, wait time.Duration, method, path, kind string, body io.Reader, out any,
) error {
	p := c.patience(ctx, wait)
	defer p.end()
	answer, err := c.do(p, method, path, kind, body)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Close() }()
	if err := json.NewDecoder(io.LimitReader(answer, maxAnswer)).Decode(out); err != nil {
		if gone := p.err(); gone != nil {
			return gone
		}
		return fmt.Errorf("read the answer of %s: %w", c.base.Redacted(), err)
	}
	return nil
}

// stream asks for what may flow for hours: only its beginning is waited for.
func (c *Client) stream(ctx context.Context, path string) (io.ReadCloser, error) {
	p := c.patience(ctx, usualWait(http.MethodGet))
	answer, err := c.do(p, http.MethodGet, path, "", nil)
	if err != nil {
		p.end()
		return nil, err
	}
	p.pause()
	return &flowing{answer, p}, nil
}

func (c *Client) do(p *patience, method, path, kind string, body io.Reader) (io.ReadCloser, error) {
	if body != nil {
		body = &sending{body, p}
	}
	req, err := http.NewRequestWithContext(p.ctx, method, c.base.String()+api.Prefix+path, body)
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", c.base.Redacted(), err)
	}
	if kind != "" {
		req.Header.Set("Content-Type", kind)
	}
	if method != http.MethodGet && c.actor != "" {
		req.Header.Set(api.ActorHeader, c.actor)
	}
	answer, err := c.http.Do(req)
	if err != nil {
		return nil, c.unanswered(p, err)
	}
	if answer.StatusCode >= http.StatusBadRequest {
		defer func() { _ = answer.Body.Close() }()
		return nil, readProblem(answer)
	}
	return answer.Body, nil
}

func (c *Client) unanswered(p *patience, err error) error {
	var dial *net.OpError
	gone := p.err()
	switch {
	case gone != nil:
		return gone
	case errors.As(err, &dial) && dial.Op == "dial":
		return &UnreachableError{URL: c.base.Redacted(), Err: err}
	default:
		return fmt.Errorf("ask the server: %w", err)
	}
}

func readProblem(answer *http.Response) error {
	p := &ProblemError{Status: answer.StatusCode, Title: http.StatusText(answer.StatusCode)}
	if !strings.HasPrefix(answer.Header.Get("Content-Type"), "application/problem+json") {
		p.Detail = fmt.Sprintf("%s answered %s; is a tranche serve there?", answer.Request.URL.Host, answer.Status)
		return p
	}
	if err := json.NewDecoder(io.LimitReader(answer.Body, 1<<20)).Decode(p); err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	return p
}
