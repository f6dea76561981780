// Package logquery answers queries for logs of the node: what journalctl has of
// a service, or a file below the directory of logs. It reads the journal by
// running journalctl, its own control group in /proc, and files below that directory, never above it; it writes
// nothing.
package logquery

import (
	"errors"
	"fmt"
	"net/url"
	"regexp/syntax"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	maxTailLines     = 100_000
	maxServices      = 4
	maxServiceLength = 256
	// maxPatternLength bounds what is parsed here and given to a program as an argument.
	maxPatternLength = 4096
)

// A Query is what a request asks for.
type Query struct {
	// Services are names of units or of log files.
	Services []string
	// Files are paths from the directory of logs.
	Files []string
	Options
}

// Options choose among the records of a journal. nil asks for nothing.
type Options struct {
	SinceTime, UntilTime *time.Time
	TailLines            *int
	// Boot counts from the current boot, 0, backwards.
	Boot *int
	// Pattern is a regular expression in Perl's syntax.
	Pattern string
}

// asked says whether there is any option.
func (o Options) asked() bool { return o != Options{} }

// Parse reads a query. It is nil if the values have nothing of one: the request
// is for a path then.
func Parse(values url.Values) (*Query, field.ErrorList) {
	var q Query
	var errs field.ErrorList
	queries, present := values["query"]
	for _, s := range queries {
		if strings.ContainsAny(s, `/\`) {
			q.Files = append(q.Files, s)
		} else if strings.TrimSpace(s) != "" {
			q.Services = append(q.Services, s)
		}
	}
	if present && len(q.Files) == 0 && len(q.Services) == 0 {
		errs = append(errs, field.Invalid(field.NewPath("query"), queries, "may not be empty"))
	}
	at := func(name string) *time.Time {
		s := values.Get(name)
		if s == "" {
			return nil
		}
		t, err := time.Parse(time.RFC3339, s)
		if err != nil {
			errs = append(errs, field.Invalid(field.NewPath(name), s, "invalid time format"))
			return nil
		}
		return &t
	}
	number := func(name string) *int {
		s := values.Get(name)
		if s == "" {
			return nil
		}
		n, err := strconv.Atoi(s)
		if err != nil {
			errs = append(errs, field.Invalid(field.NewPath(name), s, err.Error()))
			return nil
		}
		return &n
	}
	q.SinceTime, q.UntilTime = at("sinceTime"), at("untilTime")
	q.Boot, q.TailLines = number("boot"), number("tailLines")
	q.Pattern = values.Get("pattern")
	if len(errs) > 0 {
		return nil, errs
	}
	if !present && !q.asked() {
		return nil, nil
	}
	return &q, nil
}

// Validate says what cannot be answered. Whether a file is there is for who opens it.
func (q *Query) Validate() field.ErrorList {
	path := field.NewPath("query")
	var errs field.ErrorList
	for _, s := range q.Services[:min(len(q.Services), maxServices)] {
		if err := checkService(s); err != nil {
			errs = append(errs, field.Invalid(path, s, err.Error()))
		}
	}
	if n := len(q.Services); n > maxServices {
		errs = append(errs, field.TooMany(path, n, maxServices))
	}
	switch {
	case len(q.Files) == 0 && len(q.Services) == 0:
		errs = append(errs, field.Required(path, "cannot be empty with options"))
	case len(q.Files) > 0 && len(q.Services) > 0:
		errs = append(errs, field.Invalid(path, fmt.Sprintf("%v, %v", q.Files, q.Services), "cannot specify a file and service"))
	case len(q.Files) > 1:
		errs = append(errs, field.Invalid(path, q.Files, "cannot specify more than one file"))
	case len(q.Files) == 1 && q.asked():
		errs = append(errs, field.Invalid(path, q.Files, "cannot specify file with options"))
	}
	return append(errs, q.Options.validate()...)
}

func (o Options) validate() (errs field.ErrorList) {
	if o.SinceTime != nil && o.UntilTime != nil && o.SinceTime.After(*o.UntilTime) {
		errs = append(errs, field.Invalid(field.NewPath("untilTime"), o.UntilTime, "must be after `sinceTime`"))
	}
	if o.Boot != nil && *o.Boot > 0 {
		errs = append(errs, field.Invalid(field.NewPath("boot"), *o.Boot, "must be less than 1"))
	}
	if o.TailLines != nil {
		for _, why := range validation.IsInRange(*o.TailLines, 0, maxTailLines) {
			errs = append(errs, field.Invalid(field.NewPath("tailLines"), *o.TailLines, why))
		}
	}
	if len(o.Pattern) > maxPatternLength {
		return append(errs, field.TooLong(field.NewPath("pattern"), o.Pattern, maxPatternLength))
	}
	if _, err := syntax.Parse(o.Pattern, syntax.Perl); err != nil {
		errs = append(errs, field.Invalid(field.NewPath("pattern"), o.Pattern, err.Error()))
	} else if strings.ContainsRune(o.Pattern, 0) {
		errs = append(errs, field.Invalid(field.NewPath("pattern"), o.Pattern, "may not contain a zero byte"))
	}
	return errs
}

// checkService lets through only names that mean nothing else to journalctl and
// in a path.
func checkService(s string) error {
	if len(s) > maxServiceLength {
		return fmt.Errorf("length must be less than %d", maxServiceLength)
	}
	for _, c := range []byte(s) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', strings.IndexByte("-_.:@", c) >= 0:
		default:
			return errors.New("input contains unsupported characters")
		}
	}
	return nil
}
