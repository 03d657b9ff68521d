package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/internal/embedded"
	"github.com/tranchehq/tranche/migrations"
	"github.com/tranchehq/tranche/orchestrator/client"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/doctor"
	"github.com/tranchehq/tranche/workqueue/identity"
)

// checkPlace is what a check reads: a database, or what a server finds in its own.
type checkPlace struct {
	Database          string `help:"Check this database directly instead of asking a server." placeholder:"URL"`
	TransactionPooler bool   `env:"TRANCHE_TRANSACTION_POOLER" help:"--database is a transaction pooler other than PgBouncer."`
}

type doctorCommand struct{ checkPlace }

func (d *doctorCommand) Run(ctx context.Context, term *cli.Console) error {
	report, err := examine(ctx, term, &d.checkPlace, func(cl *client.Client) error {
		_, err := cl.Doctor(ctx)
		return err
	}, doctor.Store.Doctor)
	return cli.FailIf(report.Found > 0, cli.ExitOther, cli.Say(term, reportText)(report, err))
}

// examine returns the report of a server, or of a check here if --database is given.
func examine[T any](ctx context.Context, term *cli.Console, place *checkPlace, ask func(*client.Client) error,
	check func(doctor.Store, context.Context) (T, error)) (found T, err error) {
	if place.Database == "" {
		cl, err := term.Client()
		if err == nil {
			err = ask(cl)
		}
		if err == nil {
			err = json.Unmarshal(term.Answer, &found)
		}
		return found, err
	}
	if _, err := pgxpool.ParseConfig(place.Database); err != nil {
		return found, cli.Usage("--database: " + err.Error())
	}
	store, release, err := database.Open(ctx, place.Database,
		database.PoolConfig{TransactionPooler: place.TransactionPooler})
	if err != nil {
		return found, err
	}
	defer release()
	found, err = check(doctor.New(store), ctx)
	_, err = asSent[any](term, found, err)
	return found, err
}

func asSent[T any](term *cli.Console, found any, err error) (document T, _ error) {
	if err == nil {
		err = term.Keep(found)
	}
	if err != nil {
		return document, err
	}
	return document, json.Unmarshal(term.Answer, &document)
}

func reportText(r *doctor.Report) string {
	text := cli.Text("looked at %v runs, %v items, %v slices, %v parts in %v\n", r.Runs, r.Items, r.Slices, r.Parts,
		cli.Span(cli.Seconds(r.Seconds)))
	if r.Note != "" {
		text += r.Note + "\n"
	}
	if r.Found == 0 {
		text += "all invariants hold:"
		for _, rule := range doctor.Rules() {
			text += fmt.Sprintf("\n  %-3s  %s", rule.Invariant, rule.Words)
		}
		return text
	}
	for _, v := range r.Violations {
		text += cli.Text("%v\n", v.String())
	}
	return text + cli.Count(int64(r.Found)) + " violations"
}

type migrateCommand struct {
	Database string   `required:"" env:"TRANCHE_DATABASE" help:"The database to bring up to date, as the owner of its schema." placeholder:"URL"`
	DryRun   bool     `help:"Say what would be applied."`
	Grant    []string `help:"Then let this role serve, without a right to change the schema or the audit log. Again after each migration; repeatable." placeholder:"ROLE"`
}

func (m *migrateCommand) Run(ctx context.Context, term *cli.Console) error {
	waits := zap.New(zapcore.NewCore(zapcore.NewConsoleEncoder(zapcore.EncoderConfig{MessageKey: "message"}),
		zapcore.AddSync(term.Err), zap.WarnLevel))
	var files []string
	var err error
	if m.DryRun {
		files, err = migrations.Pending(ctx, m.Database)
	} else {
		files, err = migrations.Up(ctx, m.Database, waits)
	}
	for _, role := range m.Grant {
		if err == nil && !m.DryRun {
			err = migrations.Grant(ctx, m.Database, role)
		}
	}
	var notes []string
	if err == nil && (!m.DryRun || len(files) == 0) {
		notes, err = migrations.Notes(ctx, m.Database, m.Grant...)
	}
	if err != nil {
		return err
	}
	term.Warn(notes)
	if term.JSON {
		return term.Document(map[string]any{"files": noNil(files), "dry_run": m.DryRun, "granted": noNil(m.Grant)})
	}
	return term.Printf("%s", m.text(files))
}

func (m *migrateCommand) text(files []string) string {
	applied, before, after := "applied ", "", " may serve, and change neither the schema nor the audit log\n"
	if m.DryRun {
		applied, before, after = "would apply ", "would let ", " serve\n"
	}
	text := ""
	if len(files) == 0 {
		text = "the database is up to date\n"
	}
	for _, file := range files {
		text += applied + file + "\n"
	}
	for _, role := range m.Grant {
		text += before + cli.EscapeControl(role) + after
	}
	return text
}

func noNil(all []string) []string { return append([]string{}, all...) }

type tokenCommands struct {
	Create tokenCreate `cmd:"" help:"Make a token; its secret is shown this once."`
	List   tokenList   `cmd:"" help:"List tokens, newest first."`
	Rotate tokenRotate `cmd:"" help:"Replace a token; the new secret is shown only once."`
	Revoke tokenRevoke `cmd:"" help:"Revoke a token; refused everywhere within 5 s."`
}

// tokenPlace is where tokens and sessions are stored. The first token cannot be created through an API that requires
// one.
type tokenPlace struct {
	Database          string `xor:"place" help:"Use this database directly, without a server; env: the one in TRANCHE_DATABASE." placeholder:"URL"`
	DataDir           string `xor:"place" help:"Use the private database of this data directory directly." placeholder:"DIR"`
	TransactionPooler bool   `env:"TRANCHE_TRANSACTION_POOLER" help:"--database is a transaction pooler other than PgBouncer."`
}

// keep asks a server, or does the same in the database itself, and says what came of it.
func keep[T any](
	ctx context.Context, term *cli.Console, place *tokenPlace, ask func(*client.Client) (T, error),
	here func(identity.Store) (any, error), say func(T, error) error,
) (err error) {
	url, stop := place.Database, func() error { return nil }
	if url == "env" { // in a container without a shell to expand it
		if url = os.Getenv("TRANCHE_DATABASE"); url == "" {
			return cli.Usage("--database env: TRANCHE_DATABASE is not set")
		}
	}
	switch {
	case place.DataDir != "":
		if url, stop, err = privateDatabase(ctx, place.DataDir); err != nil {
			return err
		}
	case place.Database == "":
		cl, err := term.Client()
		if err != nil {
			return err
		}
		return say(ask(cl))
	}
	defer func() { err = errors.Join(err, stop()) }()
	if err := migrations.Ready(ctx, url); err != nil {
		return fmt.Errorf("the database of the tokens: %w", err)
	}
	store, release, err := database.Open(ctx, url,
		database.PoolConfig{MaxConns: 1, TransactionPooler: place.TransactionPooler})
	if err != nil {
		return err
	}
	defer release()
	done, err := here(identity.New(store))
	return say(asSent[T](term, done, err))
}

// privateDatabase finds the private PostgreSQL of a data directory: run by a serve, or else started temporarily.
func privateDatabase(ctx context.Context, dir string) (url string, stop func() error, err error) {
	data := filepath.Join(dir, "postgres")
	if !embedded.Exists(data) { // a mistyped directory must not become a data directory
		return "", nil, fmt.Errorf("--data-dir %s holds no database of tranche serve; start one there first, or give "+
			"the one that serve says when it starts", dir)
	}
	private, err := embedded.StartPostgres(ctx, embedded.PostgresConfig{DataDir: data, Bound: true})
	if _, locked := errors.AsType[*embedded.LockedError](err); locked {
		url, err := embedded.RunningURL(ctx, data)
		return url, func() error { return nil }, err
	}
	if err != nil {
		return "", nil, fmt.Errorf("start the private PostgreSQL of --data-dir %s: %w", dir, err)
	}
	return private.URL(), func() error { return private.Stop(context.WithoutCancel(ctx)) }, nil
}

type psqlCommand struct {
	DataDir string   `env:"TRANCHE_DATA_DIR" help:"The data directory of tranche serve, if not the default." placeholder:"DIR"`
	ShowURL bool     `help:"Print the URL of the database instead, for programs of the same user while serve runs."`
	Args    []string `arg:"" optional:"" passthrough:"" help:"Arguments of psql, after --, such as: -- -c 'SELECT …'"`
}

func (p *psqlCommand) Run(ctx context.Context, term *cli.Console) error {
	dir, err := wire.DefaultDataDir()
	if dir = cmp.Or(p.DataDir, dir); dir == "" {
		return err
	}
	url, stop, err := privateDatabase(ctx, dir)
	if err != nil {
		return err
	}
	if p.ShowURL {
		return errors.Join(term.Printf("%s\n", url), stop())
	}
	// psql handles Ctrl-C.
	psql := exec.CommandContext(context.WithoutCancel(ctx), "psql", append([]string{"-d", url},
		slices.DeleteFunc(p.Args, func(arg string) bool { return arg == "--" })...)...)
	psql.Stdin, psql.Stdout, psql.Stderr = term.In, term.Out, term.Err
	err = psql.Run()
	if errors.Is(err, exec.ErrNotFound) {
		err = fmt.Errorf("no psql in PATH; install PostgreSQL's client, or use another one with %s", url)
	}
	return errors.Join(err, stop())
}

type tokenCreate struct {
	Name      string            `required:"" help:"Whose it is: the actor in the audit log." placeholder:"NAME"`
	Role      string            `enum:"none,watcher,viewer,operator,admin" default:"none" help:"In every namespace: watcher sees states and counts; viewer also keys, payloads and results; operator changes runs; admin also makes tokens." placeholder:"ROLE"`
	Grant     map[string]string `help:"A further role in a namespace, like team-a=operator; repeatable." placeholder:"NAMESPACE=ROLE"`
	ExpiresIn daysOrTime        `help:"Lifetime, such as 30d or 12h; by default until it is revoked, or the server's --token-max-age." placeholder:"TIME"`
	From      []string          `help:"Addresses it may be used from, like 10.0.0.0/8; repeatable." placeholder:"ADDRESS/BITS"`
	tokenPlace
}

func (t *tokenCreate) Validate() error {
	if err := api.CheckTokenName(t.Name); err != nil { // the error names the field
		return err
	}
	if t.Role == "none" && len(t.Grant) == 0 {
		return errors.New("give --role, for every namespace, or --grant NAMESPACE=ROLE")
	}
	if t.ExpiresIn != 0 {
		return api.CheckTokenLife(time.Duration(t.ExpiresIn))
	}
	return nil
}

// Run creates a token. Standard output has only its secret, for scripts.
func (t *tokenCreate) Run(ctx context.Context, term *cli.Console) error {
	set := client.TokenSettings{Name: t.Name, Role: client.Role(t.Role), Networks: t.From, Grants: t.Grant}
	if t.ExpiresIn != 0 {
		set.ExpiresIn = time.Duration(t.ExpiresIn).String()
	}
	return keep(ctx, term, &t.tokenPlace, func(cl *client.Client) (client.CreatedToken, error) {
		return cl.CreateToken(ctx, set)
	}, func(store identity.Store) (any, error) {
		secret := access.NewSecret()
		n, err := (&api.TokenSettings{Name: set.Name, Role: access.Role(set.Role), ExpiresIn: set.ExpiresIn,
			Networks: set.Networks, Grants: set.Grants}).New(secret)
		if err != nil {
			return nil, err
		}
		made, err := store.CreateToken(ctx, n, cli.OSUser())
		return api.CreatedToken{TokenView: made, Secret: secret}, err
	}, cli.Say(term, secretOf(term)))
}

func secretOf(term *cli.Console) func(*client.CreatedToken) string {
	return func(made *client.CreatedToken) string {
		until := cmp.Or(cli.If(made.ExpiresAt != nil, "%v", made.ExpiresAt), "it is revoked")
		term.Note("token %s of %s, role %s, is good until %s; this is the only time that it is shown. Log in with it at "+
			"the dashboard, or keep it in a file for --token-file (TRANCHE_TOKEN_FILE)", made.ID[:8], made.Name,
			access.GrantsText(access.Role(made.Role), made.Grants), until)
		return made.Secret
	}
}

type tokenRotate struct {
	Token   string     `arg:"" help:"ID, its beginning, or the name of the only such token."`
	Overlap daysOrTime `default:"24h" help:"How long the old token stays valid (${default})." placeholder:"TIME"`
	tokenPlace
}

func (t *tokenRotate) Validate() error { return api.CheckOverlap(time.Duration(t.Overlap)) }

// Run prints the secret of the successor, for scripts.
func (t *tokenRotate) Run(ctx context.Context, term *cli.Console) error {
	overlap := time.Duration(t.Overlap)
	return keep(ctx, term, &t.tokenPlace, func(cl *client.Client) (client.CreatedToken, error) {
		return cl.RotateToken(ctx, t.Token, client.TokenRotation{Overlap: overlap.String()})
	}, func(store identity.Store) (any, error) {
		secret := access.NewSecret()
		made, err := store.RotateToken(ctx, t.Token, access.HashOf(secret), overlap, 0, cli.OSUser(), nil)
		return api.CreatedToken{TokenView: made, Secret: secret}, seeList(err, "token")
	}, cli.Say(term, secretOf(term)))
}

type tokenList struct{ tokenPlace }

func (t *tokenList) Run(ctx context.Context, term *cli.Console) error {
	return keep(ctx, term, &t.tokenPlace, func(cl *client.Client) (client.TokenList, error) {
		return cl.ListTokens(ctx)
	}, func(store identity.Store) (any, error) {
		all, err := store.Tokens(ctx)
		return api.TokenList{Tokens: all}, err
	}, func(list client.TokenList, err error) error {
		return (&cli.List[client.TokenView]{
			Columns: "ID|NAME|ROLE|STATE|EXPIRES|LAST USED|MADE|BY",
			Row: func(k *client.TokenView) []any {
				return []any{k.ID[:8], k.Name, access.GrantsText(access.Role(k.Role), k.Grants), k.State,
					cli.MomentOrNever(k.ExpiresAt), cli.MomentOrNever(k.LastUsedAt), k.CreatedAt, k.CreatedBy}
			},
			Empty: "there is no token; make one with: tranche token create --name NAME --role ROLE",
		}).Print(term, list.Tokens, err)
	})
}

type tokenRevoke struct {
	Token string `arg:"" help:"ID, its beginning, or the name of the only such token."`
	tokenPlace
}

func (t *tokenRevoke) Run(ctx context.Context, term *cli.Console) error {
	return keep(ctx, term, &t.tokenPlace, func(cl *client.Client) (client.TokenView, error) {
		return cl.RevokeToken(ctx, t.Token)
	}, func(store identity.Store) (any, error) {
		gone, err := store.RevokeToken(ctx, t.Token, cli.OSUser())
		return gone, seeList(err, "token")
	}, cli.Say(term, func(gone *client.TokenView) string {
		return fmt.Sprintf("token %s of %s is revoked", gone.ID[:8], cli.EscapeControl(gone.Name))
	}))
}

func seeList(err error, noun string) error {
	if errors.Is(err, workqueue.ErrNotFound) {
		return fmt.Errorf("%w; see tranche %s list", err, noun)
	}
	return err
}

type sessionCommands struct {
	List   sessionList   `cmd:"" help:"List who is logged in, the latest first."`
	Revoke sessionRevoke `cmd:"" help:"End all sessions of a user within 5 seconds."`
}

type sessionList struct{ tokenPlace }

func (l *sessionList) Run(ctx context.Context, term *cli.Console) error {
	return keep(ctx, term, &l.tokenPlace, func(cl *client.Client) (client.SessionList, error) {
		return cl.ListSessions(ctx)
	}, func(store identity.Store) (any, error) {
		all, err := store.WebSessions(ctx)
		return api.SessionList{Sessions: all}, err
	}, func(list client.SessionList, err error) error {
		return (&cli.List[client.WebSessionView]{
			Columns: "USER|ROLE|BY|SINCE|LAST USED|EXPIRES",
			Row: func(s *client.WebSessionView) []any {
				by := "provider"
				if s.Token != nil {
					by = "token " + (*s.Token)[:8]
				}
				return []any{s.User, s.Role, by, s.CreatedAt, s.ActiveAt, s.ExpiresAt}
			},
			Empty: "no one is logged in",
		}).Print(term, list.Sessions, err)
	})
}

type sessionRevoke struct {
	User string `arg:"" help:"As tranche session list and the audit log call them."`
	tokenPlace
}

func (r *sessionRevoke) Run(ctx context.Context, term *cli.Console) error {
	return keep(ctx, term, &r.tokenPlace, func(cl *client.Client) (client.RevokedSessions, error) {
		return cl.RevokeSessions(ctx, client.RevokeSessions{User: r.User})
	}, func(store identity.Store) (any, error) {
		ended, err := store.RevokeWebSessions(ctx, r.User, cli.OSUser())
		return api.RevokedSessions{User: r.User, Sessions: ended}, seeList(err, "session")
	}, cli.Say(term, func(gone *client.RevokedSessions) string {
		return fmt.Sprintf("%d sessions of %s have ended", gone.Sessions, cli.EscapeControl(gone.User))
	}))
}
