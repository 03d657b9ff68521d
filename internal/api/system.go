package api

import (
	"context"
	"maps"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tranchehq/tranche/internal/api/kernel"
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

// adminRoutes see to the system itself: who may use it, what it keeps, and how it is.
type adminRoutes struct {
	*kernel.Kernel

	config *Config
	health *health.Watch // what a person must see to
	whole  *health.Watch // the same, of which lists are not cut
}

// Register adds the routes.
func (s *adminRoutes) Register(api huma.API) {
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

func (s *adminRoutes) registerSystem(api huma.API) {
	kernel.Register(s.Kernel, api, kernel.Get("info", "/info", "What this server is"), s.info)
	check := kernel.Heavy(kernel.Get("doctor", "/doctor", "Check the invariants over the whole database"))
	kernel.RegisterWithin(s.Kernel, api, check, doctorTimeout, func(ctx context.Context, _ *struct{}) (doctor.Report,
		error) {
		return doctor.New(s.Store).Doctor(ctx)
	})
}

func (s *adminRoutes) info(context.Context, *struct{}) (Info, error) {
	info := Info{
		Version: s.config.Build.Version, Commit: s.config.Build.Commit, Date: s.config.Build.Date,
		Session: s.Node.Session(), NATS: s.NC.ConnectedUrlRedacted(), Parts: map[string]string{},
	}
	maps.Copy(info.Parts, s.config.Info)
	return info, nil
}
