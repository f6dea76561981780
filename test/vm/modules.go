package vm

import (
	"debug/elf"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
)

// wanted are the kernel modules that the guest gets, and with them what they
// need: a module by its name, all of a folder by its path.
var wanted = []string{
	// The kernel loads these by itself, for the parts of a packet rule.
	"net/netfilter", "net/ipv4", "net/ipv6", "net/bridge", "net/sched",
	"net/sctp", "drivers/net/wireguard", "crypto",
	"crc32c_generic", // libcrc32c asks for it while it starts, and nf_tables needs that one
	"dummy", "veth", "vxlan", "macvlan", "ipvlan", "tun", "8021q", "ifb",
	"unix_diag", "netlink_diag", "af_packet_diag", // CRIU asks for sockets by them
	"overlay", "fuse", "loop", "ext4", "xfs", "quota_v2",
	"virtio_pci", "virtio_blk",
	"nfs", "nfsv4", "nfsd", "iscsi_tcp", "sd_mod", "iscsi_target_mod", "target_core_file",
}

// A module is a kernel module's file, and what the file says of itself.
type module struct {
	file    string // below the kernel's folder of modules
	depends []string
	aliases []string
}

// moduleName is how the kernel names a module's file.
func moduleName(file string) string {
	return strings.ReplaceAll(strings.TrimSuffix(filepath.Base(file), ".ko"), "-", "_")
}

// readModule reads what the file of a module says.
func readModule(dir, file string) (m module, err error) {
	f, err := elf.Open(filepath.Join(dir, file))
	if err != nil {
		return m, err
	}
	defer f.Close()
	section := f.Section(".modinfo")
	if section == nil {
		return m, fmt.Errorf("%s is no kernel module", file)
	}
	b, err := section.Data()
	if err != nil {
		return m, fmt.Errorf("read %s: %w", file, err)
	}
	m = parseModinfo(string(b))
	m.file = file
	return m, nil
}

// parseModinfo reads the strings of a module's section .modinfo.
func parseModinfo(b string) (m module) {
	for line := range strings.SplitSeq(b, "\x00") {
		switch key, value, _ := strings.Cut(line, "="); {
		case key == "depends" && value != "":
			m.depends = strings.Split(strings.ReplaceAll(value, "-", "_"), ",")
		case key == "alias":
			m.aliases = append(m.aliases, value)
		}
	}
	return m
}

// moduleFiles are the files of the kernel's modules, by name.
func moduleFiles(dir string) (map[string]string, error) {
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".ko") {
			var rel string
			rel, err = filepath.Rel(dir, path)
			files[moduleName(path)] = rel
		}
		return err
	})
	return files, err
}

// named are the modules that wanted stands for.
func named(files map[string]string) (names []string) {
	for name, file := range files {
		if slices.Contains(wanted, name) || slices.ContainsFunc(wanted, func(w string) bool {
			return strings.HasPrefix(file, filepath.Join("kernel", w)+"/")
		}) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// closure adds the modules that these need. Each comes after those that it needs.
func closure(names []string, read func(name string) (module, error)) (all []module, err error) {
	seen := map[string]bool{}
	var add func(name string) error
	add = func(name string) error {
		if seen[name] {
			return nil
		}
		seen[name] = true
		m, err := read(name)
		if err != nil {
			return err
		}
		for _, d := range m.depends {
			if err := add(d); err != nil {
				return err
			}
		}
		all = append(all, m)
		return nil
	}
	for _, name := range names {
		if err := add(name); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// indexes are what modprobe looks names up in, as depmod writes them.
// modules.dep names all that a module needs, what must be loaded first last.
func indexes(all []module) (dep, alias string) {
	needs := map[string][]string{} // of a module, by name; first first
	for _, m := range all {
		var files []string
		for _, d := range m.depends {
			for _, file := range needs[d] {
				if !slices.Contains(files, file) {
					files = append(files, file)
				}
			}
		}
		line := slices.Clone(files)
		slices.Reverse(line)
		dep += strings.TrimSpace(m.file+": "+strings.Join(line, " ")) + "\n"
		needs[moduleName(m.file)] = append(files, m.file)
		for _, a := range m.aliases {
			alias += "alias " + a + " " + moduleName(m.file) + "\n"
		}
	}
	return dep, alias
}

// addModules puts the kernel's modules below lib/modules.
func (a *initramfs) addModules(k kernel) error {
	files, err := moduleFiles(k.modules)
	if err != nil {
		return err
	}
	all, err := closure(named(files), func(name string) (module, error) {
		file, ok := files[name]
		if !ok {
			return module{}, fmt.Errorf("the kernel has no module %s", name)
		}
		return readModule(k.modules, file)
	})
	if err != nil {
		return err
	}
	to := "lib/modules/" + filepath.Base(k.modules)
	for _, m := range all {
		a.copy(to+"/"+m.file, filepath.Join(k.modules, m.file))
	}
	dep, alias := indexes(all)
	a.data(to+"/modules.dep", dep)
	a.data(to+"/modules.alias", alias)
	return nil
}
