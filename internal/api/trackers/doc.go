// Package trackers is the tracker service by HTTP.
package trackers
