package network

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"slices"
	"strings"
)

// versions of the CNI specification this plugin speaks.
var versions = []string{"0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"}

// The specification's error codes.
const (
	codeVersion     = 1
	codeEnvironment = 4
	codeDecode      = 6
	codeConfig      = 7
	codeOther       = 100
	codeUnavailable = 50
)

type cniError struct {
	CNIVersion string `json:"cniVersion"`
	Code       int    `json:"code"`
	Msg        string `json:"msg"`
}

func (e *cniError) Error() string { return e.Msg }

func fail(code int, err error) error {
	if err == nil {
		return nil
	}
	return &cniError{Code: code, Msg: err.Error()}
}

// Command does one CNI command, given as the specification says, and returns
// the exit code. The kernel may be nil.
func Command(kernel *Kernel, env func(string) string, in io.Reader, out io.Writer) int {
	// Network namespaces belong to threads.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	version := "1.0.0"
	result, err := command(kernel, env, in, &version)
	if err != nil {
		e := &cniError{}
		if !errors.As(err, &e) {
			e = &cniError{Code: codeOther, Msg: err.Error()}
		}
		e.CNIVersion = version
		_ = json.NewEncoder(out).Encode(e) // the exit code tells, too
		return 1
	}
	if result != nil {
		if err := json.NewEncoder(out).Encode(result); err != nil {
			return 1
		}
	}
	return 0
}

func command(kernel *Kernel, env func(string) string, in io.Reader, version *string) (any, error) {
	input, err := io.ReadAll(io.LimitReader(in, 4<<20))
	if err != nil {
		return nil, err
	}
	c := &Conf{kernel: kernel}
	verb := env("CNI_COMMAND")
	if err := json.Unmarshal(input, c); err != nil && !(verb == "VERSION" && len(input) == 0) {
		return nil, fail(codeDecode, fmt.Errorf("decode the configuration: %w", err))
	}
	if verb == "VERSION" {
		if c.CNIVersion == "" {
			c.CNIVersion = versions[len(versions)-1]
		}
		return map[string]any{"cniVersion": c.CNIVersion, "supportedVersions": versions}, nil
	}
	if !slices.Contains(versions, c.CNIVersion) {
		return nil, fail(codeVersion, fmt.Errorf("version %q of the CNI specification is not among %s", c.CNIVersion, strings.Join(versions, ", ")))
	}
	*version = c.CNIVersion
	id, ifName, netns := env("CNI_CONTAINERID"), env("CNI_IFNAME"), env("CNI_NETNS")
	if c.Type == Loopback {
		return loopback(c, verb, netns)
	}
	if err := c.Validate(); err != nil {
		return nil, fail(codeConfig, err)
	}
	if verb == "ADD" || verb == "DEL" || verb == "CHECK" {
		if err := validateArgs(verb, id, ifName, netns); err != nil {
			return nil, fail(codeEnvironment, err)
		}
	}
	switch verb {
	case "ADD":
		c.podUID = podUID(env("CNI_ARGS"))
		a, mac, err := attach(c, id, ifName, netns)
		if err != nil {
			return nil, err
		}
		return resultOf(c, a, mac), nil
	case "DEL":
		return nil, detach(c, id, ifName)
	case "CHECK":
		return nil, check(c, id, ifName, netns)
	case "GC":
		return nil, collect(c)
	case "STATUS":
		return nil, fail(codeUnavailable, Ready(c))
	}
	return nil, fail(codeEnvironment, fmt.Errorf("CNI_COMMAND %q is unknown", verb))
}

func validateArgs(verb, id, ifName, netns string) error {
	if id == "" || strings.ContainsAny(id, "/: \x00") || strings.HasPrefix(id, ".") {
		return fmt.Errorf("CNI_CONTAINERID %q is no container's id", id)
	}
	if ifName == "" || len(ifName) > 15 || ifName == "." || ifName == ".." || strings.ContainsAny(ifName, "/: \t\n") {
		return fmt.Errorf("CNI_IFNAME %q is no name for a link", ifName)
	}
	if verb == "ADD" && netns == "" {
		return errors.New("CNI_NETNS is not set")
	}
	return nil
}

type result struct {
	CNIVersion string            `json:"cniVersion"`
	Interfaces []resultInterface `json:"interfaces"`
	IPs        []resultIP        `json:"ips"`
	Routes     []resultRoute     `json:"routes"`
	DNS        struct{}          `json:"dns"`
}

type resultInterface struct {
	Name    string `json:"name"`
	Mac     string `json:"mac,omitempty"`
	Sandbox string `json:"sandbox,omitempty"`
}

type resultIP struct {
	// Version is what the specification had before 1.0.
	Version   string `json:"version,omitempty"`
	Interface int    `json:"interface"`
	Address   string `json:"address"`
	Gateway   string `json:"gateway,omitempty"`
}

type resultRoute struct {
	Dst string `json:"dst"`
	GW  string `json:"gw,omitempty"`
}

// old says of a version of the specification that addresses have their own.
func old(version string) bool { return strings.HasPrefix(version, "0.") }

func resultOf(c *Conf, a *Attachment, mac net.HardwareAddr) result {
	r := result{CNIVersion: c.CNIVersion, Interfaces: []resultInterface{
		{Name: c.Bridge},
		{Name: hostLink(a.key())},
		{Name: a.IfName, Mac: mac.String(), Sandbox: a.Netns},
	}}
	for i, addr := range a.Addrs {
		gw := gateway(c.PodCIDRs[i])
		ip := resultIP{Interface: 2, Address: prefixOf(addr), Gateway: gw.String()}
		dst := "0.0.0.0/0"
		if addr.Is6() {
			dst = "::/0"
		}
		if old(c.CNIVersion) {
			ip.Version = "4"
			if addr.Is6() {
				ip.Version = "6"
			}
		}
		r.IPs = append(r.IPs, ip)
		r.Routes = append(r.Routes, resultRoute{Dst: dst, GW: gw.String()})
	}
	return r
}
