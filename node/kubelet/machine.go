package kubelet

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// machine is what does not change while the node is up.
type machine struct {
	cpus      int
	memory    int64 // bytes
	swap      int64
	hugepages map[string]int64 // resource suffix (2Mi) to bytes
	machineID string
	uuid      string
	bootID    string
	kernel    string
	osImage   string
}

func readMachine() (m machine, err error) {
	m.cpus = runtime.NumCPU()
	if b, err := os.ReadFile("/sys/devices/system/cpu/online"); err == nil {
		if n := countCPUs(strings.TrimSpace(string(b))); n > 0 {
			m.cpus = n
		}
	}
	info, err := meminfo()
	if err != nil {
		return m, err
	}
	m.memory, m.swap = info["MemTotal"], info["SwapTotal"]
	m.hugepages = hugepageTotals()
	for _, p := range []string{"/etc/machine-id", "/var/lib/dbus/machine-id"} {
		if m.machineID = readTrim(p); m.machineID != "" {
			break
		}
	}
	m.bootID = readTrim("/proc/sys/kernel/random/boot_id")
	if m.uuid = readTrim("/sys/class/dmi/id/product_uuid"); m.uuid == "" {
		m.uuid = m.machineID
	}
	var u unix.Utsname
	if err := unix.Uname(&u); err == nil {
		m.kernel = unix.ByteSliceToString(u.Release[:])
	}
	m.osImage = osImage()
	return m, nil
}

func readTrim(path string) string {
	b, _ := os.ReadFile(path)
	return strings.TrimSpace(string(b))
}

// countCPUs counts a list like 0-3,7.
func countCPUs(list string) (n int) {
	for _, part := range strings.Split(list, ",") {
		lo, hi, isRange := strings.Cut(part, "-")
		a, err := strconv.Atoi(lo)
		if err != nil {
			return 0
		}
		b := a
		if isRange {
			if b, err = strconv.Atoi(hi); err != nil {
				return 0
			}
		}
		n += b - a + 1
	}
	return n
}

func meminfo() (map[string]int64, error) {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	out := map[string]int64{}
	s := bufio.NewScanner(f)
	for s.Scan() {
		f := strings.Fields(s.Text())
		if len(f) < 2 {
			continue
		}
		n, err := strconv.ParseInt(f[1], 10, 64)
		if err != nil {
			continue
		}
		if len(f) == 3 {
			n *= 1024
		}
		out[strings.TrimSuffix(f[0], ":")] = n
	}
	return out, s.Err()
}

func hugepageTotals() map[string]int64 {
	out := map[string]int64{}
	dirs, _ := filepath.Glob("/sys/kernel/mm/hugepages/hugepages-*kB")
	for _, d := range dirs {
		kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimPrefix(filepath.Base(d), "hugepages-"), "kB"), 10, 64)
		if err != nil {
			continue
		}
		n, _ := strconv.ParseInt(readTrim(filepath.Join(d, "nr_hugepages")), 10, 64)
		name := fmt.Sprintf("%dKi", kb)
		switch {
		case kb%(1<<20) == 0:
			name = fmt.Sprintf("%dGi", kb>>20)
		case kb%(1<<10) == 0:
			name = fmt.Sprintf("%dMi", kb>>10)
		}
		out[name] = n * kb * 1024
	}
	return out
}

func osImage() string {
	f, err := os.Open("/etc/os-release")
	if err != nil {
		return "Linux"
	}
	defer f.Close()
	s := bufio.NewScanner(f)
	for s.Scan() {
		if v, ok := strings.CutPrefix(s.Text(), "PRETTY_NAME="); ok {
			return strings.Trim(v, `"`)
		}
	}
	return "Linux"
}

// oomFloor is the lowest oom_score_adj this process may give to others.
func oomFloor() int64 {
	const capSysResource = 24
	var hdr unix.CapUserHeader
	var data [2]unix.CapUserData
	hdr.Version = unix.LINUX_CAPABILITY_VERSION_3
	if unix.Capget(&hdr, &data[0]) == nil && data[0].Effective&(1<<capSysResource) != 0 {
		return -1000
	}
	n, err := strconv.ParseInt(readTrim("/proc/self/oom_score_adj"), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// defaultIP is the address packets leave from by the default route.
func defaultIP() (net.IP, error) {
	for _, to := range []string{"192.0.2.1:9", "[2001:db8::1]:9"} {
		c, err := net.Dial("udp", to) // sends nothing
		if err != nil {
			continue
		}
		ip := c.LocalAddr().(*net.UDPAddr).IP
		_ = c.Close()
		return ip, nil
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() {
			return n.IP, nil
		}
	}
	return nil, errors.New("no address")
}

// shareMounts makes dir a mount whose mounts propagate both ways, which
// bidirectional volumes and CSI drivers in pods need.
func shareMounts(dir string) error {
	if err := unix.Mount("", dir, "", unix.MS_SHARED, ""); err == nil {
		return nil // a mount point already
	}
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	best, shared := "", false
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) < 7 || len(f[4]) < len(best) || f[4] != "/" && f[4] != dir && !strings.HasPrefix(dir, f[4]+"/") {
			continue
		}
		best, shared = f[4], strings.Contains(line, " shared:")
	}
	if shared {
		return nil
	}
	return fmt.Errorf("%s is not on a shared mount; make it one with mount --make-rshared %[1]s and start again", best)
}

// appArmorEnabled says whether the kernel confines programs by AppArmor's profiles.
func appArmorEnabled() bool {
	b, err := os.ReadFile("/sys/module/apparmor/parameters/enabled")
	return err == nil && strings.HasPrefix(string(b), "Y")
}
