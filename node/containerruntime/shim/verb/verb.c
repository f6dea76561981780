/*
 * verb is what containerd executes where it wants a shim started or deleted. One
 * shim runs all containers of a node, so that there is little to do, once or
 * twice for each pod: it says where that shim's socket is, and sees that a
 * container was deleted already. All else it leaves to knarr-shim beside it. It
 * stands without a C library, so that it starts at once.
 */

#if defined(__x86_64__)
enum { SYS_write = 1, SYS_execve = 59, SYS_exit_group = 231, SYS_faccessat = 269 };

static long call(long n, long a, long b, long c)
{
	long r;
	__asm__ volatile("syscall" : "=a"(r) : "a"(n), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
	return r;
}

__asm__(".globl _start\n_start:\n\tmov %rsp, %rdi\n\tand $-16, %rsp\n\tcall run\n");
#elif defined(__aarch64__)
enum { SYS_faccessat = 48, SYS_write = 64, SYS_exit_group = 94, SYS_execve = 221 };

static long call(long n, long a, long b, long c)
{
	register long x8 __asm__("x8") = n;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
	return x0;
}

__asm__(".globl _start\n_start:\n\tmov x0, sp\n\tbl run\n");
#else
#error "verb knows the system calls of amd64 and arm64 only"
#endif

enum { AT_FDCWD = -100, ROOM = 4096 };

static int length(const char *s)
{
	int n = 0;
	while (s[n])
		n++;
	return n;
}

static int same(const char *a, const char *b)
{
	while (*a && *a == *b)
		a++, b++;
	return *a == *b;
}

/* The length of a path's directory with its last stroke, 0 if it has none. */
static int directory(const char *path)
{
	int n = length(path);
	while (n > 0 && path[n - 1] != '/')
		n--;
	return n;
}

static void leave(int code)
{
	call(SYS_exit_group, code, 0, 0);
}

/*
 * The answer to start is a BootstrapResult: the protocol's version in field 1,
 * the address in field 2, the protocol in field 3.
 */
static void start(const char *address)
{
	static const char scheme[] = "unix://", name[] = "tasks.sock", protocol[] = "\x1a\x05ttrpc";
	char out[ROOM];
	int n = 0, dir = directory(address), size = sizeof(scheme) - 1 + dir + sizeof(name) - 1;
	if (dir == 0 || size > 127) /* the kernel allows a socket fewer, and one byte holds no more */
		return;
	out[n++] = 0x08, out[n++] = 3, out[n++] = 0x12, out[n++] = (char)size;
	for (int i = 0; scheme[i]; i++)
		out[n++] = scheme[i];
	for (int i = 0; i < dir; i++)
		out[n++] = address[i];
	for (int i = 0; name[i]; i++)
		out[n++] = name[i];
	for (int i = 0; protocol[i]; i++)
		out[n++] = protocol[i];
	if (call(SYS_write, 1, (long)out, n) == n)
		leave(0);
	leave(1);
}

__attribute__((used)) void run(long *stack)
{
	static const char program[] = "knarr-shim";
	long count = stack[0];
	char **args = (char **)(stack + 1), **env = args + count + 1, *address = 0, path[ROOM];

	for (long i = 1; i + 1 < count; i++)
		if (same(args[i], "-address"))
			address = args[i + 1];
	if (address && same(args[count - 1], "start"))
		start(address);
	/* The current directory is the container's bundle. */
	if (address && same(args[count - 1], "delete") && call(SYS_faccessat, AT_FDCWD, (long)"knarr-shim.deleted", 0) == 0)
		leave(0);

	int dir = count > 0 ? directory(args[0]) : 0;
	if (dir > 0 && dir + (int)sizeof(program) <= ROOM) {
		for (int i = 0; i < dir; i++)
			path[i] = args[0][i];
		for (int i = 0; i < (int)sizeof(program); i++)
			path[dir + i] = program[i];
		args[0] = path;
		call(SYS_execve, (long)path, (long)args, (long)env);
	}
	leave(1);
}
