package runs

import "github.com/danielgtaylor/huma/v2"

// registerLive is what a page shows while a run goes on.
func (s *Routes) registerLive(api huma.API) {
	s.registerPlanes(api)
	groupings{s}.register(api)
	s.registerEvents(api)
	s.registerTopics(api)
	s.registerTimeline(api)
	histories{s}.register(api)
	s.registerSlices(api)
	s.registerItemsList(api)
}
