// Package systemoom tells when the whole node, and not one control group, ran out of
// memory. It reads the kernel's log at /dev/kmsg.
package systemoom

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// maxRecord is more than a record of the kernel's log can have.
const maxRecord = 16 << 10

// killed is how the kernel says which process it has ended for want of memory; when a
// control group ran out of it, there are words before.
var killed = regexp.MustCompile(`^Out of memory[^:]*: Kill(?:ed)? process (\d{1,10}) \(([^)]{0,64})\)`)

// Parse reads a record of the kernel's log.
func Parse(record string) (process string, pid int, ok bool) {
	head, message, found := strings.Cut(record, ";")
	if !found {
		return "", 0, false
	}
	// What programs write into the log has another facility than the kernel's.
	first, _, _ := strings.Cut(head, ",")
	if level, err := strconv.Atoi(first); err != nil || level > 7 {
		return "", 0, false
	}
	m := killed.FindStringSubmatch(message)
	if m == nil {
		return "", 0, false
	}
	pid, err := strconv.Atoi(m[1])
	return m[2], pid, err == nil
}

// Watch calls f for each process that is ended from now on, until ctx ends.
func Watch(ctx context.Context, path string, f func(process string, pid int)) error {
	log, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("read the kernel's log: %w", err)
	}
	defer log.Close()
	defer context.AfterFunc(ctx, func() { _ = log.Close() })()
	_, _ = log.Seek(0, io.SeekEnd) // what was before has been told of
	record := make([]byte, maxRecord)
	for {
		n, err := log.Read(record) // one at a time
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.EPIPE):
			continue // some were overwritten before they were read
		case err != nil:
			return fmt.Errorf("read the kernel's log: %w", err)
		}
		if process, pid, ok := Parse(string(record[:n])); ok {
			f(process, pid)
		}
	}
}
