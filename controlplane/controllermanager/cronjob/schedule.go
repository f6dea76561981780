package cronjob

import (
	"errors"
	"fmt"
	"strings"
	"time"

	cronlib "github.com/robfig/cron/v3"
	batchv1 "k8s.io/api/batch/v1"
)

const (
	// delta is added to the next time, so that the clock has surely reached it.
	delta = 100 * time.Millisecond
	// manyMissed is from when on missed times are worth a warning.
	manyMissed = 100
	// lookBack is how many years of missed times are known.
	lookBack = 100
)

// parse reads the schedule in its time zone.
func parse(cron *batchv1.CronJob) (schedule cronlib.Schedule, err error) {
	defer func() { // some words make the parser panic
		if p := recover(); p != nil {
			err = fmt.Errorf("invalid schedule format: %v", p)
		}
	}()
	text := cron.Spec.Schedule
	if zone := cron.Spec.TimeZone; zone != nil && !strings.Contains(text, "TZ") {
		text = fmt.Sprintf("TZ=%s %s", *zone, text)
	}
	return cronlib.ParseStandard(text)
}

// errNever is of a schedule that can be read and has no times, such as February 31.
var errNever = errors.New("time difference between two schedules is less than 1 second")

// latest is the last time of the schedule that has come since the last job, and
// how many have; zero when none has.
func latest(cron *batchv1.CronJob, schedule cronlib.Schedule, now time.Time) (due time.Time, missed int64, err error) {
	since := cron.CreationTimestamp.Time
	if t := cron.Status.LastScheduleTime; t != nil {
		since = t.Time
	}
	if late := cron.Spec.StartingDeadlineSeconds; late != nil {
		if t := now.Add(-time.Duration(*late) * time.Second); t.After(since) {
			since = t
		}
	}
	// A status may say any time; from the first centuries on, every minute would
	// be looked at.
	if earliest := now.AddDate(-lookBack, 0, 0); since.Before(earliest) {
		since = earliest
	}
	first := schedule.Next(since)
	if first.IsZero() {
		return time.Time{}, 0, errNever
	}
	if now.Before(first) {
		return time.Time{}, 0, nil
	}
	second := schedule.Next(first)
	if second.IsZero() || now.Before(second) {
		return first, 1, nil
	}
	// Years may have passed: jump close to now instead of counting.
	every := second.Sub(first)
	if every < time.Second {
		return time.Time{}, 0, errNever
	}
	missed = int64(now.Sub(first)/every) + 1
	for t := schedule.Next(first.Add(time.Duration(missed-2) * every)); !t.IsZero() && !t.After(now); t = schedule.Next(t) {
		due = t
	}
	if due.IsZero() { // uneven schedules: the jump went too far
		for t := first; !t.IsZero() && !t.After(now); t = schedule.Next(t) {
			due = t
		}
	}
	return due, missed, nil
}
