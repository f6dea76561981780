package conntrack

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Limits are those of the kernel's connection tracking. What is zero stays as it is.
type Limits struct {
	// MaxPerCore and Min decide how many connections are tracked: so many for each core,
	// and at least Min. A higher number that is found stays.
	MaxPerCore, Min int
	// Established, CloseWait, UDP and UDPStream are how long a connection of that state
	// is remembered without a packet.
	Established, CloseWait, UDP, UDPStream time.Duration
	// Liberal takes TCP packets out of their window for good.
	Liberal bool
}

// DefaultLimits are upstream's.
var DefaultLimits = Limits{MaxPerCore: 32 << 10, Min: 128 << 10, Established: 24 * time.Hour, CloseWait: time.Hour}

const settings = "/proc/sys/net/netfilter"

// A setting is one file of the kernel's, and what it shall say.
type setting struct {
	name, value string
	atLeast     bool // a higher value stays
}

func (l Limits) settings() (all []setting) {
	if l.MaxPerCore > 0 {
		all = append(all, setting{"nf_conntrack_max", strconv.Itoa(max(l.Min, l.MaxPerCore*runtime.NumCPU())), true})
	}
	if l.Liberal {
		all = append(all, setting{"nf_conntrack_tcp_be_liberal", "1", false})
	}
	for _, t := range []struct {
		name string
		d    time.Duration
	}{
		{"nf_conntrack_tcp_timeout_established", l.Established}, {"nf_conntrack_tcp_timeout_close_wait", l.CloseWait},
		{"nf_conntrack_udp_timeout", l.UDP}, {"nf_conntrack_udp_timeout_stream", l.UDPStream},
	} {
		if t.d > 0 {
			all = append(all, setting{t.name, strconv.Itoa(int(t.d.Seconds())), false})
		}
	}
	return all
}

// A change is what a setting was found to be, and what it was made.
type change struct{ Found, Set string }

// Set changes the kernel's settings, and writes to the file record what they were, so
// that Restore can give them back; without a file they stay. What this process may not
// change, in a container with a read-only /proc or in a network namespace, stays too.
func (l Limits) Set(record string) error { return l.set(settings, record) }

func (l Limits) set(dir, record string) error {
	changes, err := recorded(record)
	if err != nil {
		return err
	}
	for _, s := range l.settings() {
		file := filepath.Join(dir, s.name)
		found, err := read(file)
		if err == nil && found != s.value && !(s.atLeast && more(found, s.value)) {
			if err = os.WriteFile(file, []byte(s.value), 0o644); err == nil {
				was := found
				if earlier, ok := changes[s.name]; ok {
					was = earlier.Found
				}
				changes[s.name] = change{was, s.value}
			}
		}
		switch {
		case errors.Is(err, os.ErrNotExist), errors.Is(err, os.ErrPermission), errors.Is(err, syscall.EROFS):
			slog.Info("a limit of connection tracking stays as it is", "sysctl", s.name, "wanted", s.value, "err", err)
		case err != nil:
			return fmt.Errorf("set the limits of connection tracking: %w", err)
		}
	}
	if record == "" || len(changes) == 0 {
		return nil
	}
	b, err := json.Marshal(changes)
	if err == nil {
		err = os.WriteFile(record, b, 0o600)
	}
	if err != nil {
		return fmt.Errorf("note the limits of connection tracking: %w", err)
	}
	return nil
}

func read(file string) (string, error) {
	b, err := os.ReadFile(file)
	return strings.TrimSpace(string(b)), err
}

func more(found, wanted string) bool {
	a, errA := strconv.Atoi(found)
	b, errB := strconv.Atoi(wanted)
	return errA == nil && errB == nil && a >= b
}

func recorded(record string) (map[string]change, error) {
	changes := map[string]change{}
	b, err := os.ReadFile(record)
	if errors.Is(err, os.ErrNotExist) {
		return changes, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &changes)
	}
	if err != nil {
		return nil, fmt.Errorf("read what the limits of connection tracking were, in %s: %w", record, err)
	}
	return changes, nil
}

// Restore gives the settings of the file record back what they were found to be, unless
// somebody has changed them since.
func Restore(record string) error { return restore(settings, record) }

func restore(dir, record string) error {
	changes, err := recorded(record)
	if err != nil {
		return err
	}
	var errs []error
	for name, c := range changes {
		if name != filepath.Base(name) {
			continue
		}
		file := filepath.Join(dir, name)
		if now, err := read(file); err != nil || now != c.Set {
			continue
		}
		errs = append(errs, os.WriteFile(file, []byte(c.Found), 0o644))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("restore the limits of connection tracking: %w", err)
	}
	return nil
}
