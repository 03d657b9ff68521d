package admin

import (
	"context"
	"maps"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/api/kernel"
	"github.com/tranchehq/tranche/internal/buildinfo"
	"github.com/tranchehq/tranche/internal/health"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/doctor"
)

// Info says what this server is and where its parts are.
type Info struct {
	Version string              `json:"version"`
	Commit  string              `json:"commit,omitempty" doc:"of the source"`
	Date    string              `json:"date,omitempty" doc:"of the commit"`
	Session workqueue.SessionID `json:"session"`
	NATS    string              `json:"nats"`
	Parts   map[string]string   `json:"parts"`
}

// doctorTimeout is how long the doctor may take.
const doctorTimeout = 10 * time.Minute

// Config is what the routes of the system need beside the kernel.
type Config struct {
	Build buildinfo.Info
	Info  map[string]string // where things are, for people

	// OIDC lets people log in by a provider of identities; nil: there is none. It needs Access.
	OIDC *access.OIDC
	// SecureCookies says that browsers come by TLS.
	SecureCookies bool

	Health *health.Watch // what a person must see to
	Whole  *health.Watch // the same, of which lists are not cut
}

// Routes see to the system itself: who may use it, what it keeps, and how it is.
type Routes struct {
	*kernel.Kernel

	config Config
}

// New returns the routes of the system.
func New(k *kernel.Kernel, config Config) *Routes { return &Routes{k, config} }

// Register adds the routes.
func (s *Routes) Register(api huma.API) {
	s.registerAudit(api)
	s.registerRetention(api)
	(&erasures{s.Store, s.MayChange}).register(s.Kernel, api)
	s.registerStreamSettings(api)
	s.registerSystem(api)
	s.registerSession(api)
	s.registerTokens(api)
	s.registerSessions(api)
	s.registerHealth(api)
}

func (s *Routes) registerSystem(api huma.API) {
	kernel.Register(s.Kernel, api, kernel.Get("info", "/info", "What this server is"), s.info)
	check := kernel.Heavy(kernel.Get("doctor", "/doctor", "Check the invariants over the whole database"))
	kernel.RegisterWithin(s.Kernel, api, check, doctorTimeout, func(ctx context.Context, _ *struct{}) (doctor.Report,
		error) {
		return doctor.New(s.Store).Doctor(ctx)
	})
}

func (s *Routes) info(context.Context, *struct{}) (Info, error) {
	info := Info{
		Version: s.config.Build.Version, Commit: s.config.Build.Commit, Date: s.config.Build.Date,
		Session: s.Node.Session(), NATS: s.NC.ConnectedUrlRedacted(), Parts: map[string]string{},
	}
	maps.Copy(info.Parts, s.config.Info)
	return info, nil
}
