package registry

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func validateCronJob(_ context.Context, c, old *batchv1.CronJob) field.ErrorList {
	var f faults
	at := field.NewPath("spec")
	s := &c.Spec
	if s.Schedule == "" {
		f.required(at.Child("schedule"), "")
	} else {
		f.add(validateSchedule(s, old != nil && strings.Contains(old.Spec.Schedule, "TZ"), at.Child("schedule")))
	}
	f.add(nonnegativeOpt(s.StartingDeadlineSeconds, at.Child("startingDeadlineSeconds")))
	if s.TimeZone != nil && (old == nil || !same(s.TimeZone, old.Spec.TimeZone)) {
		f.add(validateTimeZone(*s.TimeZone, at.Child("timeZone")))
	}
	if s.ConcurrencyPolicy == "" {
		f.required(at.Child("concurrencyPolicy"), "")
	} else {
		among(&f, s.ConcurrencyPolicy, at.Child("concurrencyPolicy"), batchv1.AllowConcurrent, batchv1.ForbidConcurrent, batchv1.ReplaceConcurrent)
	}
	job := at.Child("jobTemplate", "spec")
	f.add(validateJobSpec(&s.JobTemplate.Spec, job))
	if s.JobTemplate.Spec.Selector != nil {
		f.invalid(job.Child("selector"), s.JobTemplate.Spec.Selector, "`selector` will be auto-generated")
	}
	if m := s.JobTemplate.Spec.ManualSelector; deref(m, false) {
		f.list = append(f.list, field.NotSupported(job.Child("manualSelector"), m, []string{"nil", "false"}))
	}
	f.add(nonnegativeOpt(s.SuccessfulJobsHistoryLimit, at.Child("successfulJobsHistoryLimit")))
	f.add(nonnegativeOpt(s.FailedJobsHistoryLimit, at.Child("failedJobsHistoryLimit")))
	if old == nil && len(c.Name) > 52 {
		f.invalid(field.NewPath("metadata", "name"), c.Name, "must be no more than 52 characters")
	}
	return f.list
}

func validateSchedule(s *batchv1.CronJobSpec, zoneAllowed bool, at *field.Path) field.ErrorList {
	var f faults
	if err := parseSchedule(s.Schedule); err != nil {
		f.invalid(at, s.Schedule, err.Error())
	}
	switch has := strings.Contains(s.Schedule, "TZ"); {
	case has && !zoneAllowed:
		f.invalid(at, s.Schedule, "cannot use TZ or CRON_TZ in schedule, use timeZone field instead")
	case has && s.TimeZone != nil:
		f.invalid(at, s.Schedule, "cannot use both timeZone field and TZ or CRON_TZ in schedule")
	}
	return f.list
}

var zonePart = regexp.MustCompile(`^[A-Za-z\.\-_0-9+]{1,14}$`)

func validateTimeZone(zone string, at *field.Path) field.ErrorList {
	var f faults
	if zone == "" {
		f.invalid(at, zone, "timeZone must be nil or non-empty string")
		return f.list
	}
	for part := range strings.SplitSeq(zone, "/") {
		if part == "." || part == ".." || strings.HasPrefix(part, "-") || !zonePart.MatchString(part) {
			f.invalid(at, zone, fmt.Sprintf("unknown time zone %s", zone))
			return f.list
		}
	}
	if strings.EqualFold(zone, "Local") {
		f.invalid(at, zone, "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones")
	}
	if _, err := time.LoadLocation(zone); err != nil {
		f.invalid(at, zone, err.Error())
	}
	return f.list
}

// cronField is one of the five parts of a schedule.
type cronField struct {
	min, max int
	names    map[string]int
}

var cronFields = []cronField{
	{0, 59, nil}, {0, 23, nil}, {1, 31, nil},
	{1, 12, cronNames(1, "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")},
	{0, 6, cronNames(0, "sun", "mon", "tue", "wed", "thu", "fri", "sat")},
}

func cronNames(first int, names ...string) map[string]int {
	m := map[string]int{}
	for i, n := range names {
		m[n] = first + i
	}
	return m
}

// parseSchedule checks a schedule of cron, with the errors that users know.
func parseSchedule(s string) error {
	if rest, ok := strings.CutPrefix(s, "CRON_"); ok {
		s = rest
	}
	if zone, ok := strings.CutPrefix(s, "TZ="); ok {
		name, rest, found := strings.Cut(zone, " ")
		if !found {
			return fmt.Errorf("no schedule after time zone: %s", s)
		}
		if _, err := time.LoadLocation(name); err != nil {
			return fmt.Errorf("provided bad location %s: %v", name, err)
		}
		s = strings.TrimSpace(rest)
	}
	if strings.HasPrefix(s, "@") {
		return parseDescriptor(s)
	}
	parts := strings.Fields(s)
	if len(parts) != len(cronFields) {
		return fmt.Errorf("expected exactly %d fields, found %d: %s", len(cronFields), len(parts), parts)
	}
	for i, part := range parts {
		for expr := range strings.SplitSeq(part, ",") {
			if err := cronFields[i].parse(expr); err != nil {
				return err
			}
		}
	}
	return nil
}

func parseDescriptor(s string) error {
	switch s {
	case "@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly":
		return nil
	}
	if d, ok := strings.CutPrefix(s, "@every "); ok {
		if _, err := time.ParseDuration(d); err != nil {
			return fmt.Errorf("failed to parse duration %s: %s", s, err)
		}
		return nil
	}
	return fmt.Errorf("unrecognized descriptor: %s", s)
}

func (c cronField) parse(expr string) error {
	bounds, step, stepped := strings.Cut(expr, "/")
	low, high, ranged := strings.Cut(bounds, "-")
	if strings.Contains(high, "-") {
		return fmt.Errorf("too many hyphens: %s", expr)
	}
	start, end := c.min, c.max
	if low != "*" && low != "?" {
		var err error
		if start, err = c.number(low); err != nil {
			return err
		}
		switch {
		case ranged:
			if end, err = c.number(high); err != nil {
				return err
			}
		case !stepped:
			end = start
		}
	}
	if stepped {
		if strings.Contains(step, "/") {
			return fmt.Errorf("too many slashes: %s", expr)
		}
		n, err := cronInt(step)
		if err != nil {
			return err
		}
		if n == 0 {
			return fmt.Errorf("step of range should be a positive number: %s", expr)
		}
	}
	switch {
	case start < c.min:
		return fmt.Errorf("beginning of range (%d) below minimum (%d): %s", start, c.min, expr)
	case end > c.max:
		return fmt.Errorf("end of range (%d) above maximum (%d): %s", end, c.max, expr)
	case start > end:
		return fmt.Errorf("beginning of range (%d) beyond end of range (%d): %s", start, end, expr)
	}
	return nil
}

func (c cronField) number(s string) (int, error) {
	if n, ok := c.names[strings.ToLower(s)]; ok {
		return n, nil
	}
	return cronInt(s)
}

func cronInt(s string) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil {
		return 0, fmt.Errorf("failed to parse int from %s: %s", s, err)
	}
	if n < 0 {
		return 0, fmt.Errorf("negative number (%d) not allowed: %s", n, s)
	}
	return n, nil
}
