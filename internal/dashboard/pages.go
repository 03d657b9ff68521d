package dashboard

import "strings"

// pages are the paths that the document answers; {} stands for one segment. app/router.js has the same.
func pages() []string {
	return []string{
		"/", "/runs", "/runs/{}", "/runs/{}/errors", "/runs/{}/item", "/runs/{}/comparison", "/start", "/plans",
		"/schedules", "/collectors", "/trackers", "/alerts", "/endpoints", "/endpoint", "/nodes",
		"/dead-letters", "/audit", "/health", "/tokens", "/login", "/api",
	}
}

// isPage reports whether a path is one of the pages.
func isPage(path string) bool {
	have := strings.Split(path, "/")
	for _, page := range pages() {
		if fits(strings.Split(page, "/"), have) {
			return true
		}
	}
	return false
}

func fits(want, have []string) bool {
	if len(want) != len(have) {
		return false
	}
	for i, part := range want {
		if part != have[i] && (part != "{}" || have[i] == "") {
			return false
		}
	}
	return true
}
