// Package footprint gives memory back that only the start of a process needed:
// it reads /proc/self and advises the kernel. It changes nothing a program can
// see.
package footprint

import (
	"bufio"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Trim lets go of the program's own pages in memory. A start touches nearly all
// of a large binary once (initialisers, embedded files); what is used again is
// mapped again from the page cache, without reading the disk, at some hundred
// nanoseconds a page. Free heap pages go too. It returns the bytes of the
// program that were resident before.
//
// Only mappings without a single page of the process's own (anonymous) are
// touched: those hold exactly what the file holds.
func Trim() (int64, error) {
	debug.FreeOSMemory()
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return 0, fmt.Errorf("trim: %w", err)
	}
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		return 0, fmt.Errorf("trim: %w", err)
	}
	defer f.Close()
	var total int64
	var m mapping
	done := func() error {
		if m.size == 0 || m.private > 0 {
			return nil
		}
		total += m.resident
		return unix.Madvise(unsafe.Slice((*byte)(m.start), m.size), unix.MADV_DONTNEED)
	}
	s := bufio.NewScanner(f)
	for s.Scan() {
		line := s.Text()
		if start, end, rest, ok := header(line); ok {
			if err := done(); err != nil {
				return total, fmt.Errorf("trim: %w", err)
			}
			m = mapping{}
			ours := strings.HasSuffix(rest, " "+exe) && (strings.HasPrefix(rest, "r-xp") || strings.HasPrefix(rest, "r--p"))
			// A file mapped to be read and shared, such as the datastore's, is
			// loaded whole at its start.
			shared := strings.HasPrefix(rest, "r--s")
			if ours || shared {
				// An address of the running program, so that nothing is made up.
				m.start, m.size = pointer(start), int(end-start)
			}
			continue
		}
		var kb int64
		switch {
		case strings.HasPrefix(line, "Rss:"):
			_, _ = fmt.Sscanf(line, "Rss: %d", &kb)
			m.resident = kb << 10
		case strings.HasPrefix(line, "Anonymous:"):
			_, _ = fmt.Sscanf(line[strings.IndexByte(line, ':')+1:], "%d", &kb)
			m.private += kb
		}
	}
	if err := done(); err != nil {
		return total, fmt.Errorf("trim: %w", err)
	}
	return total, s.Err()
}

type mapping struct {
	start             unsafe.Pointer
	size              int
	resident, private int64
}

// header reads the first line of a mapping.
func header(line string) (start, end uintptr, rest string, ok bool) {
	n, _ := fmt.Sscanf(line, "%x-%x", &start, &end)
	if n != 2 {
		return 0, 0, "", false
	}
	_, rest, ok = strings.Cut(line, " ")
	return start, end, rest, ok
}

// pointer makes a pointer of an address from /proc/self/smaps, which lies in
// the program's own mapping and outside Go's heap.
func pointer(addr uintptr) unsafe.Pointer {
	return *(*unsafe.Pointer)(unsafe.Pointer(&addr))
}
