package logquery

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// OwnUnit is the unit of systemd whose log in the journal is this process's, ""
// if there is none: the process was started otherwise, or logs elsewhere.
func OwnUnit() string {
	var st unix.Stat_t
	if err := unix.Fstat(int(os.Stderr.Fd()), &st); err != nil {
		return ""
	}
	groups, err := os.ReadFile("/proc/self/cgroup")
	if err != nil || os.Getenv("JOURNAL_STREAM") != fmt.Sprintf("%d:%d", st.Dev, st.Ino) {
		return ""
	}
	return unitOf(string(groups))
}

// unitOf finds a service in what the kernel says of a process's control groups.
func unitOf(groups string) string {
	for line := range strings.Lines(groups) {
		controllers, path, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":/")
		if !strings.HasSuffix(controllers, ":") && !strings.HasSuffix(controllers, ":name=systemd") {
			continue // a controller of version 1, whose groups are not systemd's
		}
		parts := strings.Split(path, "/")
		for i := len(parts) - 1; i >= 0; i-- {
			if strings.HasSuffix(parts[i], ".service") && checkService(parts[i]) == nil {
				return parts[i]
			}
		}
	}
	return ""
}
