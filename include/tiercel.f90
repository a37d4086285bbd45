! SPDX-License-Identifier: Apache-2.0 OR MIT
!
! tiercel.f90: phases in Fortran. Compile it with the program; nothing has to be linked.
! In: call tiercel_phase('solve'). Out: the same as in C. Without `tiercel run` it does nothing.
! Knows nothing of memory: allocate statements are placed by a plan.
module tiercel
    use, intrinsic :: iso_c_binding, only: c_char, c_funptr, c_null_char, c_null_ptr, c_ptr, &
        c_associated, c_f_procpointer
    implicit none
    private
    public :: tiercel_phase

    abstract interface
        subroutine phase_call(name) bind(c)
            import :: c_char
            character(kind=c_char), dimension(*), intent(in) :: name
        end subroutine phase_call
    end interface

    interface
        ! The null handle is RTLD_DEFAULT.
        function find_symbol(handle, name) bind(c, name='dlsym') result(symbol)
            import :: c_char, c_funptr, c_ptr
            type(c_ptr), value :: handle
            character(kind=c_char), dimension(*), intent(in) :: name
            type(c_funptr) :: symbol
        end function find_symbol
    end interface

contains

    ! Begins a phase, which lasts until the next call. Trailing blanks of the name are ignored.
    subroutine tiercel_phase(name)
        character(len=*), intent(in) :: name
        type(c_funptr) :: symbol
        procedure(phase_call), pointer :: phase
        symbol = find_symbol(c_null_ptr, 'tiercel_phase' // c_null_char)
        if (.not. c_associated(symbol)) return
        call c_f_procpointer(symbol, phase)
        call phase(trim(name) // c_null_char)
    end subroutine tiercel_phase

end module tiercel
