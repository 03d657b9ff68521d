// Package schedules has the commands about schedules.
package schedules
