// Package schedules is the routes of schedules. It also starts their runs when they are due, as a person's start does.
package schedules
