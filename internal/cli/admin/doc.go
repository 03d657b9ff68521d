// Package admin has the commands that are not about runs: those about plans, schedules, alerts, collectors, trackers and
// endpoints, those that look after the system itself, and what the program says of itself. Each noun has its file.
package admin
