package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
)

// lists are what is known of specs by their names.
type lists struct {
	passing []string          // those that pass
	left    map[string]string // why each of these cannot run here
	whole   []family          // why none of these can
	without []string          // those that are not run, nor missed
	missing []string          // programs of storage drivers, without which some are skipped
}

// A family are the specs whose whole name matches, which are left out for one reason.
type family struct {
	match *regexp.Regexp
	why   string
}

// members adds those that the suite has of each family to the specs that are left out
// by name; a family without any is an error.
func (l lists) members(names []string) error {
	for _, f := range l.whole {
		found := false
		for _, n := range names {
			if !f.match.MatchString(n) {
				continue
			}
			found = true
			if _, named := l.left[n]; !named {
				l.left[n] = f.why
			}
		}
		if !found {
			return fmt.Errorf("listed as left out, but the suite has no spec that matches %s", f.match)
		}
	}
	return nil
}

// stale fails if a list names a spec that the suite does not have, or if both
// lists name it.
func (l lists) stale(names []string) error {
	var errs []error
	known := map[string]bool{}
	for _, n := range names {
		known[n] = true
	}
	for _, n := range l.passing {
		if !known[n] {
			errs = append(errs, fmt.Errorf("listed as passing, but the suite has no such spec: %s", n))
		}
		if why, ok := l.left[n]; ok {
			errs = append(errs, fmt.Errorf("listed as passing, and as left out because %q: %s", why, n))
		}
	}
	for n := range l.left {
		if !known[n] {
			errs = append(errs, fmt.Errorf("listed as left out, but the suite has no such spec: %s", n))
		}
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(errs...)
}

// readList reads names, one a line; no file is an empty list.
func readList(path string) (names []string, err error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if n := strings.TrimSpace(lines.Text()); n != "" {
			names = append(names, n)
		}
	}
	return names, lines.Err()
}

// readWithout reads such a list, if one is named.
func readWithout(path string) ([]string, error) {
	if path == "" {
		return nil, nil
	}
	return readList(path)
}

func writeList(path string, names []string) error {
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	return os.WriteFile(path, []byte(strings.Join(names, "\n")+"\n"), 0o644)
}

// readLeft reads the specs that cannot run here, one a line, each below a line
// "# reason" that holds for all up to the next one. A line "~ regexp" stands for all
// specs whose whole name matches.
func readLeft(path string) (left map[string]string, whole []family, err error) {
	lines, err := readList(path)
	if err != nil {
		return nil, nil, err
	}
	left, why := map[string]string{}, ""
	for _, l := range lines {
		if reason, ok := strings.CutPrefix(l, "#"); ok {
			why = strings.TrimSpace(reason)
			continue
		}
		if _, twice := left[l]; twice || why == "" {
			return nil, nil, fmt.Errorf("read %s: %q is there twice, or without a reason", path, l)
		}
		expr, ok := strings.CutPrefix(l, "~")
		if !ok {
			left[l] = why
			continue
		}
		match, err := regexp.Compile("^(?:" + strings.TrimSpace(expr) + ")$")
		if err != nil {
			return nil, nil, fmt.Errorf("read %s: %w", path, err)
		}
		whole = append(whole, family{match, why})
	}
	return left, whole, nil
}
