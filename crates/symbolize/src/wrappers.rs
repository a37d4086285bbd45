//! Names of functions that only wrap an allocator: their caller names the site.
//! In: a demangled function name. Out: whether it is such a wrapper.
//! Knows nothing of stacks.

/// Whole names.
const NAMES: &[&str] = &[
    // C and POSIX
    "malloc",
    "calloc",
    "realloc",
    "reallocarray",
    "aligned_alloc",
    "memalign",
    "posix_memalign",
    "valloc",
    "pvalloc",
    "strdup",
    "__strdup",
    "strndup",
    "__strndup",
    "asprintf",
    "vasprintf",
    "mmap",
    "mmap64",
    "mremap",
    // Conventional wrappers
    "xnmalloc",
    "x2realloc",
    "x2nrealloc",
    "xpalloc",
    "xcharalloc",
    "ximalloc",
    "xicalloc",
    "xirealloc",
    "do_xmalloc",
    // Redis, memcached
    "zmalloc",
    "zcalloc",
    "zrealloc",
    "zmalloc_usable",
    "zcalloc_usable",
    "zrealloc_usable",
    "ztrymalloc",
    "ztrycalloc",
    "ztryrealloc",
    "ztrymalloc_usable",
    "ztrycalloc_usable",
    "ztryrealloc_usable",
    "ztrymalloc_usable_internal",
    "ztrycalloc_usable_internal",
    "ztryrealloc_usable_internal",
    "zcalloc_num",
    // SQLite
    "sqlite3MemMalloc",
    "sqlite3MemRealloc",
    "sqlite3Malloc",
    "sqlite3MallocZero",
    "sqlite3Realloc",
    "sqlite3_malloc",
    "sqlite3_malloc64",
    "sqlite3_realloc",
    "sqlite3_realloc64",
    "mallocWithAlarm",
    // GLib
    "g_malloc",
    "g_malloc0",
    "g_malloc_n",
    "g_malloc0_n",
    "g_realloc",
    "g_realloc_n",
    "g_try_malloc",
    "g_try_malloc_n",
    "g_try_realloc",
    "g_slice_alloc",
    "g_slice_alloc0",
    "g_strdup",
    // CRuntime of others
    "av_malloc",
    "av_mallocz",
    "av_realloc",
    "CRYPTO_malloc",
    "CRYPTO_zalloc",
    "CRYPTO_realloc",
    "ggc_internal_alloc",
    "alloc_page",
    // NumPy
    "PyDataMem_UserNEW",
    "PyDataMem_UserNEW_ZEROED",
    "PyDataMem_UserRENEW",
    "PyDataMem_NEW",
    "PyDataMem_NEW_ZEROED",
    "default_malloc",
    "default_calloc",
    "default_realloc",
    "_npy_alloc_cache",
    "npy_alloc_cache",
    "npy_alloc_cache_zero",
    // OpenMP
    "omp_alloc",
    "omp_aligned_alloc",
    "omp_calloc",
    "omp_aligned_calloc",
    "omp_realloc",
    "GOMP_alloc",
    "__kmpc_alloc",
    "__kmpc_aligned_alloc",
    "__kmpc_calloc",
    "__kmpc_realloc",
    "__kmp_alloc",
    "__kmp_calloc",
    "__kmp_realloc",
    "kmpc_malloc",
    "memkind_malloc",
    "memkind_calloc",
    "memkind_realloc",
    // Ours
    "tiercel_alloc",
    "tiercel_aligned_alloc",
    "tiercel_space_malloc",
    "tiercel_space_calloc",
    "tiercel_space_realloc",
    // Rust
    "__rust_alloc",
    "__rust_alloc_zeroed",
    "__rust_realloc",
    "__rdl_alloc",
    "__rdl_alloc_zeroed",
    "__rdl_realloc",
];

/// Beginnings of names.
const PREFIXES: &[&str] = &[
    "operator new",
    "__gnu_cxx::new_allocator",
    "__gnu_cxx::__alloc",
    "std::allocator",
    "std::__new_allocator",
    "std::__detail::_Hashtable_alloc",
    "std::_Vector_base",
    "std::_Deque_base",
    "std::__cxx11::basic_string",
    "std::vector<",
    "std::deque<",
    "std::make_unique",
    "std::make_shared",
    "std::__shared_count",
    "std::__shared_ptr",
    "std::__uninitialized",
    "std::__allocate_guarded",
    "void std::vector<",
    "alloc::alloc::",
    "alloc::raw_vec::",
    "alloc::vec::",
    "<alloc::",
    "std::sys::alloc",
    "std::alloc::",
    "PyMem_",
    "PyObject_Malloc",
    "PyObject_Calloc",
    "PyObject_Realloc",
    "_PyMem_",
    "_PyObject_Malloc",
    "_PyObject_Calloc",
    "_PyObject_Realloc",
    "pymalloc_",
    "xmalloc",
    "xrealloc",
    "xcalloc",
];

/// What programs put before the name of an allocating function, without a final underscore.
const BEFORE: &[&str] = &[
    "", "x", "z", "e", "p", "s", "safe", "must", "check", "checked", "do", "my", "try", "wrap",
    "wrapped", "mem", "util", "sys", "fatal", "secure", "zero", "clear", "debug", "raw",
];

/// The allocating function.
const STEMS: &[&str] = &[
    "malloc",
    "calloc",
    "realloc",
    "alloc",
    "zalloc",
    "mallocz",
    "malloc0",
    "alloc0",
    "mallocarray",
    "reallocarray",
    "memalign",
    "alignedalloc",
    "aligned_alloc",
    "aligned_malloc",
    "strdup",
    "strndup",
    "memdup",
];

/// What programs put behind it.
const BEHIND: &[&str] =
    &["_or_die", "_or_exit", "_or_abort", "_or_fail", "_checked", "_check", "_safe", "_wrapper"];

/// A wrapper by its name: `must_alloc`, `xmalloc`, `SafeCalloc`, `my_realloc`, `malloc_or_die`.
fn is_named_so(name: &str) -> bool {
    let name = name.trim_start_matches('_').to_ascii_lowercase();
    let behind = BEHIND.iter().find_map(|behind| name.strip_suffix(behind));
    let name = behind.unwrap_or(&name);
    STEMS.iter().any(|stem| {
        let before = name.strip_suffix(stem);
        before.is_some_and(|before| BEFORE.contains(&before.trim_end_matches('_')))
    })
}

/// True when `function` only passes memory on. Template arguments and parameters do not matter.
pub fn is_wrapper(function: &str) -> bool {
    let bare = function.split('(').next().unwrap_or(function);
    // Compilers append `.constprop.0`, `.isra.0`, `.part.0`, `.cold` to what they cloned.
    let name = bare.split('.').next().unwrap_or(bare);
    NAMES.contains(&name)
        || is_named_so(name)
        || PREFIXES.iter().any(|prefix| bare.starts_with(prefix))
        || bare.contains("::allocate") && bare.contains("lloc")
}

#[cfg(test)]
mod tests {
    use super::is_wrapper;

    #[test]
    fn wrappers_and_others() {
        for name in [
            "malloc",
            "operator new(unsigned long)",
            "operator new[](unsigned long)",
            "xmalloc",
            "zmalloc.constprop.0",
            "std::allocator_traits<std::allocator<int>>::allocate(std::allocator<int>&)",
            "std::vector<double, std::allocator<double> >::reserve(unsigned long)",
            "PyMem_RawMalloc",
            "must_alloc",
            "xmalloc",
            "safe_calloc",
            "SafeMalloc",
            "checked_realloc",
            "check_malloc",
            "do_alloc",
            "my_alloc",
            "zmalloc",
            "ecalloc",
            "__my_malloc",
            "malloc_or_die",
            "xmalloc_checked",
            "xstrdup",
            "alloc::raw_vec::RawVecInner<A>::try_allocate_in",
        ] {
            assert!(is_wrapper(name), "{name}");
        }
        for name in [
            "main",
            "read_problem",
            "PyList_Append",
            "mallocate_all",
            "Table::grow(int)",
            "Table::alloc(int)",
            "init_alloc",
            "matrix_alloc",
            "alloc_table",
            "dealloc",
            "x",
            "",
        ] {
            assert!(!is_wrapper(name), "{name}");
        }
    }
}
